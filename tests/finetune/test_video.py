"""Frames by time, the same for training and use; nothing is guessed about a file that does not say it."""

import numpy as np
import pytest

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.pipelines.models.video import Sampling, read_clip, wanted_times

av = pytest.importorskip("av")


def clip(path, seconds=4, rate=10, form=None, codec="mpeg4", size=(32, 16), start=0):
    """A video whose frames get brighter: frame i has grey 20 + 5 i."""
    with av.open(str(path), "w", format=form) as out:
        stream = out.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for i in range(seconds * rate):
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), 20 + 5 * i, np.uint8), format="rgb24")
            frame.pts = i + start
            for packet in stream.encode(frame):
                out.mux(packet)
        for packet in stream.encode():
            out.mux(packet)
    return path


def test_fault_31_frames_are_those_shown_at_stated_times(tmp_path):
    path = clip(tmp_path / "a.mp4")
    assert wanted_times(4.0, Sampling()) == [0.5, 1.5, 2.5, 3.5]
    found = read_clip(path, Sampling())
    assert found.time_us == [500_000, 1_500_000, 2_500_000, 3_500_000]
    greys = [int(np.asarray(frame).mean()) for frame in found.frames]
    assert all(abs(grey - (20 + 5 * i)) <= 4 for grey, i in zip(greys, (5, 15, 25, 35), strict=True)), greys
    assert read_clip(path.read_bytes(), Sampling()).time_us == found.time_us
    few = read_clip(path, Sampling(frames_per_second=10, max_frames=2))
    assert few.time_us == [1_000_000, 3_000_000]
    # another frame rate of the same scene gives frames of the same times
    assert read_clip(clip(tmp_path / "b.mp4", rate=5), Sampling()).time_us == [400_000, 1_400_000, 2_400_000, 3_400_000]


def test_a_bare_stream_without_times_is_not_guessed_at(tmp_path):
    raw = clip(tmp_path / "a.m4v", form="m4v")
    with pytest.raises(DecodeError, match="has the form 'm4v'.*says no times"):
        read_clip(raw, Sampling())


def test_what_is_no_video_or_too_much_of_one(tmp_path):
    (tmp_path / "x.mp4").write_bytes(b"nothing of the kind")
    with pytest.raises(DecodeError, match="is not a video"):
        read_clip(tmp_path / "x.mp4", Sampling())
    path = clip(tmp_path / "a.mp4")
    with pytest.raises(DecodeError, match="4 s long, more than the limit of 2 s"):
        read_clip(path, Sampling(max_seconds=2))
    with pytest.raises(DecodeError, match="32 x 16"):
        read_clip(path, Sampling(max_pixels=100))
    with pytest.raises(ConfigError, match="max_frames is 0"):
        Sampling(max_frames=0)
    with pytest.raises(ConfigError, match="unknown name 'fps'"):
        Sampling.of({"fps": 1})


def test_fault_31_training_and_use_take_the_same_frames(models, rows, kit, tmp_path):
    """Settings of the frames are in the folder that a run writes, and `embed` reads a video by them."""
    from watersmeet.cli.finetune import Request, finetune_command
    from watersmeet.cli.graft import graft_command
    from watersmeet.pipelines.models.local import load_local
    from watersmeet.pipelines.models.prompt import read_prompt

    tower = "frames=4 width=16 layers=1 heads=2 head_dim=8 mlp=16 grid=4 frame_patch_limit=4".split()
    folder = kit.native(tmp_path / "base", ["<user>", "<assistant>"], with_image=False)
    graft_command(str(folder), "moonvit", tmp_path / "seeing", assignments=[f"moonvit.{word}" for word in tower])
    clip(tmp_path / "a.mp4", size=(28, 28))
    row = kit.talk([{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "What?"}], "Yes.")
    config = tmp_path / "c.toml"
    config.write_text(
        "dataset_options = { video = { frames_per_second = 2.0, max_frames = 6 } }\n[batch]\npool = 2\n[run]\nthreads = 1\n"
    )
    path = rows([row] * 2)
    finetune_command(
        Request(
            model=str(tmp_path / "seeing"), data=path, out=tmp_path / "run", config=config, steps=1, device="cpu",
            batch_tokens=64,
        ),
        report=lambda line: None,
    )  # fmt: skip
    made = str(tmp_path / "run" / "model")
    data = kit.open(path, made)
    assert data.video == Sampling(frames_per_second=2.0, max_frames=6)
    trained = [s for s in data.sample(0, np.random.default_rng(0)).spans if s.modality == "moonvit"]
    used = [span for _, span in read_prompt(load_local(made), [str(tmp_path / "a.mp4")])]
    assert [s.key for s in trained] == [s.key for s in used] and len(used) == 2  # six frames are groups of four and two
    with pytest.raises(ConfigError, match=r"video.max_frames is 3 but .* was trained with 6"):
        kit.open(path, made, video={"max_frames": 3})


def test_a_model_with_the_modality_video_reads_what_changes(rows, kit, tmp_path):
    """The same spans in a prompt, in a row that is learnt and from the encoder; `embed` and `finetune` run on them."""
    from safetensors.numpy import load_file

    from watersmeet.cli.embed import embed_command
    from watersmeet.cli.finetune import Request, finetune_command
    from watersmeet.cli.graft import graft_command
    from watersmeet.pipelines.models.local import load_local
    from watersmeet.pipelines.models.prompt import read_prompt
    from watersmeet.plugins.registry import get_registry

    folder = kit.native(tmp_path / "base", ["<user>", "<assistant>"], with_image=False)
    words = ["video.scale=1.0", "video.patch=8", "video.channels=4", "video.waves=4"]
    graft_command(str(folder), "video", tmp_path / "seeing", assignments=words)
    clip(tmp_path / "a.mp4", seconds=2)
    path = rows([kit.talk([{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "What?"}], "Yes.")] * 2)
    data = kit.open(path, str(tmp_path / "seeing"))
    trained = [s for s in data.sample(0, np.random.default_rng(0)).spans if s.modality == "video"]
    local = load_local(str(tmp_path / "seeing"))
    used = [span for _, span in read_prompt(local, [str(tmp_path / "a.mp4")])]
    settings = {"scale": 1.0, "patch": 8, "channels": 4, "waves": 4}
    plain = get_registry().encoder("video", settings).encode(tmp_path / "a.mp4")
    assert [s.key for s in trained] == [s.key for s in used] == [s.key for s in plain] and len(plain) > 3
    assert plain[0].n == 8 and [int(s.time_us[0]) for s in plain] == sorted(int(s.time_us[0]) for s in plain)
    embed_command(
        str(tmp_path / "seeing"), [str(tmp_path / "a.mp4"), "text:Hi"], tmp_path / "e.safetensors", dtype="float32"
    )
    found = load_file(tmp_path / "e.safetensors")
    count = sum(s.n for s in plain)
    assert found["inputs_embeds"].shape[0] > count and (found["ids"][:count] == -1).all()
    config = tmp_path / "c.toml"
    config.write_text("[batch]\npool = 2\n[run]\nthreads = 1\n")
    finetune_command(
        Request(
            model=str(tmp_path / "seeing"), data=path, out=tmp_path / "run", config=config, steps=1, device="cpu",
            batch_tokens=data.sample(0, np.random.default_rng(0)).n,
        ),
        report=lambda line: None,
    )  # fmt: skip
    before = local.model.embedders["video"].state_dict()
    after = load_local(str(tmp_path / "run" / "model")).model.embedders["video"].state_dict()
    assert any(not np.array_equal(before[name], after[name]) for name in before)
