"""What a run of video-to-spec can be told with `--set`."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Defaults that run.

    max_tokens  how many symbols a model that comes as a folder may write about one change
    truth       the NAME.json of a recording that was made; what is found is then scored against it
    key_frames  how many pictures, at most, a model that is asked in words is shown
    max_answer  how many tokens such a model may answer with
    timeout_s   how long a server may take to answer, in seconds
    """

    max_tokens: int = field(default=48, metadata={"least": 16, "most": 1024})
    truth: str = ""
    key_frames: int = field(default=32, metadata={"least": 1, "most": 512})
    max_answer: int = field(default=16_384, metadata={"least": 64, "most": 131_072})
    timeout_s: float = field(default=600.0, metadata={"least": 1.0, "most": 86_400.0})
