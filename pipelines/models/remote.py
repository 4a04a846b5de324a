"""A model behind an OpenAI-compatible server (vLLM, SGLang and others), named `openai:NAME@URL`.

Only chat completions are used. The key, if the server wants one, comes from the environment variable OPENAI_API_KEY.
"""

import base64
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from watersmeet.core.errors import RemoteError, UsageError

if TYPE_CHECKING:
    import httpx

Part = str | Image.Image
"""What a question is made of: texts and pictures."""

_MAX_ANSWER = 4_000_000  # characters; more is no page that a person wrote
_REFUSED = (400, 404, 415, 422, 501)  # what servers answer that know no `response_format`


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """`name` as the server knows it, `url` up to and including its version part, e.g. http://localhost:8000/v1."""

    name: str
    url: str
    timeout_s: float = 120.0

    def ask(self, prompt: str, picture: Image.Image, *, max_tokens: int = 8192) -> str:
        """The text that the model answers to `prompt` about `picture`; errors as of `ask_parts`."""
        return self.ask_parts([picture, prompt], max_tokens=max_tokens)

    def ask_parts(self, parts: Sequence[Part], *, max_tokens: int, schema: Mapping[str, Any] | None = None) -> str:
        """The text that the model answers to texts and pictures in this order.

        schema: a JSON schema that the answer is held to by servers that can; others are asked without it, so it should
        stand in the texts too. Raises RemoteError, saying what the server did, when it cannot be reached or does not
        answer with text.
        """
        body: dict[str, Any] = {
            "model": self.name,
            "temperature": 0,
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": [_content(part) for part in parts]}],
        }
        if schema is None:
            return self._text(self._post(body))
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}
        reply = self._post(body | {"response_format": form})
        # servers say in several ways that they know no such form
        return self._text(self._post(body) if reply.status_code in _REFUSED else reply)

    def _post(self, body: Mapping[str, Any]) -> "httpx.Response":
        # every start would take longer otherwise, and most ask no server
        import httpx

        key = os.environ.get("OPENAI_API_KEY", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            return httpx.post(
                f"{self.url.rstrip('/')}/chat/completions", json=body, headers=headers, timeout=self.timeout_s
            )
        except httpx.TimeoutException as error:
            raise RemoteError(f"the server at {self.url} did not answer within {self.timeout_s:.0f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RemoteError(f"the server at {self.url} cannot be reached: {error}; is it running?") from error

    def _text(self, reply: "httpx.Response") -> str:
        if reply.status_code != 200:
            raise RemoteError(f"the server at {self.url} answered {reply.status_code}: {_excerpt(reply.text)}")
        try:
            answer = reply.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise RemoteError(
                f"the server at {self.url} answered something that is no chat completion: {_excerpt(reply.text)}"
            ) from error
        if not isinstance(answer, str) or not answer.strip():
            raise RemoteError(f"the model {self.name!r} at {self.url} answered without text")
        return answer[:_MAX_ANSWER]


def parse_remote(spec: str) -> RemoteModel:
    """`openai:NAME@URL` as a RemoteModel. Raises UsageError for any other form."""
    match = re.fullmatch(r"openai:(?P<name>[^@\s]+(?:@[^@\s]+)*)@(?P<url>https?://\S+)", spec)
    if match is None:
        raise UsageError(
            f"model {spec!r} is not of the form openai:NAME@URL, e.g. openai:my-model@http://localhost:8000/v1"
        )
    return RemoteModel(name=match["name"], url=match["url"])


def code_block(answer: str, language: str = "html") -> str:
    """The first fenced block of `language` (or of none), else the answer itself, without surrounding space."""
    blocks = re.findall(r"```([\w-]*)[^\n]*\n(.*?)(?:```|\Z)", answer, flags=re.DOTALL)
    for wanted in (language, ""):
        for name, text in blocks:
            if name.lower() == wanted:
                return str(text).strip()
    return answer.strip()


def _content(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": _data_url(part)}}


def _data_url(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _excerpt(text: str) -> str:
    """One line of at most 200 characters, for an error sentence."""
    line = " ".join(text.split())
    return repr(line[:200] + ("…" if len(line) > 200 else "")) if line else "nothing"
