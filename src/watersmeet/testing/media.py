"""Checks 13 to 16: what is written, what is damaged, what is decoded by rules, and what only looks like media."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from watersmeet.core.errors import DecodeError
from watersmeet.core.stream import Span
from watersmeet.plugins.guard import describe
from watersmeet.testing import samples
from watersmeet.testing.checks import CheckFailure, NotApplicable
from watersmeet.testing.loading import spec_is_there
from watersmeet.testing.subject import Subject
from watersmeet.testing.worker import columns


def decodes_what_it_wrote(subject: Subject) -> None:
    """13: the item comes back from its ids."""
    spec_is_there(subject)
    if not subject.spec.writes:
        raise NotApplicable("the modality is read, not written")
    decoder = subject.registry.decoder(subject.modality, subject.encoder.settings, files=subject.encoder.files)
    for index, one in enumerate(subject.examples):
        ids = [int(number) for span in one.spans for number in span.data]
        item = one.item.decode() if isinstance(one.item, bytes) and _reads_text(subject) else one.item
        found = decoder.decode(ids)
        if not subject.same(item, found):
            raise CheckFailure(f"item {index} is {_short(item)} and was decoded as {_short(found)}")


_JSON: tuple[Any, ...] = (
    None, {}, [], {"a": 1}, ["x", None], [[1, 2], [3]], "no-such-file", "", 10**400, float("nan"), [float("inf")],
)  # fmt: skip


def refuses_damage(subject: Subject) -> None:
    """14: bad media is a DecodeError and nothing else."""
    spec_is_there(subject)
    for item in subject.damaged:
        if _outcome(subject, item) is not None:
            raise CheckFailure(f"{_short(item)}, which is damaged, was encoded, expected DecodeError")
    strict = any(one.strict for one in subject.samples)
    found = _outcome(subject, b"")
    if found:
        raise CheckFailure(f"empty bytes gave {found} tokens, expected DecodeError, or none")
    if _outcome(subject, samples.noise(3000)) and strict:
        raise CheckFailure("3000 random bytes were encoded, expected DecodeError")
    for raw in _files(subject):
        for part in (raw[:1], raw[: len(raw) // 3], raw[: len(raw) - 5], raw[::-1], raw[:60] + samples.noise(500)):
            _outcome(subject, part)
    # rows of training data hold any JSON value where an item should be
    for item in _JSON:
        _outcome(subject, item)
    _outcome(subject, Path("no") / "such" / "file")


def _outcome(subject: Subject, item: Any) -> int | None:
    """Number of tokens, or None for a DecodeError. Raises CheckFailure for any other error."""
    try:
        return sum(span.n for span in subject.encoder.encode(item))
    except DecodeError:
        return None
    except Exception as error:  # whatever it is, it is the finding
        raise CheckFailure(f"{_short(item)} raised {describe(error)}, expected DecodeError") from error


def _files(subject: Subject) -> list[bytes]:
    return [
        one.item if isinstance(one.item, bytes) else one.item.read_bytes()
        for one in subject.examples
        if isinstance(one.item, (bytes, Path))
    ]


def reads_media_right(subject: Subject) -> None:
    """15: pictures upright and without hidden pixels, all channels of a sound at once, frames at their own times."""
    spec_is_there(subject)
    kinds = subject.spec.media_types
    done = False
    if any(kind.startswith("image/") for kind in kinds):
        done |= _pictures(subject, kinds)
    if any(kind in ("audio/wav", "audio/x-wav", "audio/vnd.wave") for kind in kinds):
        done |= _channels(subject)
    if "video/mp4" in kinds:
        done |= _frame_times(subject)
    if not done:
        raise NotApplicable("none of its media types has rules of its own here")


def _tokens(subject: Subject, item: Any) -> list[Span] | None:
    try:
        return list(subject.encoder.encode(item))
    except DecodeError:
        return None


def _same(subject: Subject, what: str, left: bytes, right: bytes) -> bool:
    """Compare two files that show the same; False where the encoder reads neither."""
    found = [_tokens(subject, item) for item in (left, right)]
    if found[1] is None:
        return False
    prints = [None if spans is None else [columns(span) for span in spans] for spans in found]
    if prints[0] != prints[1]:
        raise CheckFailure(what)
    return True


def _pictures(subject: Subject, kinds: Sequence[str]) -> bool:
    from PIL import Image

    plain = samples.picture(64, 48)
    done = False
    if "image/jpeg" in kinds or "image/png" in kinds:
        # lossless, so that a turned picture can be the same to the bit
        form = "PNG" if "image/png" in kinds else "JPEG"
        turned = Image.new("RGB", (80, 40), (200, 30, 30))
        turned.paste((30, 30, 200), (40, 0, 80, 40))
        note = Image.Exif()
        note[0x0112] = 6  # show turned by a quarter
        upright = turned.transpose(Image.Transpose.ROTATE_270)
        options = {"quality": 100, "subsampling": 0} if form == "JPEG" else {}
        left, right = (
            samples.image_bytes(turned, form, exif=note, **options),
            samples.image_bytes(upright, form, **options),
        )
        done |= _same(subject, "a picture that says it is to be turned (EXIF) is read as it lies", left, right)
    if "image/png" in kinds:
        few = plain.quantize(32)
        done |= _same(
            subject,
            "a picture with a palette is read otherwise than the same in RGB",
            samples.image_bytes(few),
            samples.image_bytes(few.convert("RGB")),
        )
        hidden = []
        for colour in ((255, 0, 0), (0, 0, 255)):
            picture = Image.new("RGBA", (64, 48), (*colour, 0))
            picture.paste((10, 120, 10, 255), (10, 10, 50, 40))
            hidden.append(samples.image_bytes(picture))
        done |= _same(subject, "fully transparent pixels show through", *hidden)
    return done


def _channels(subject: Subject) -> bool:
    mono, stereo = samples.sound(1.0), samples.sound(1.0, channels=2)
    found = [_tokens(subject, item) for item in (mono, stereo)]
    if found[0] is None:
        return False
    if found[1] is None:
        raise CheckFailure("a sound of two channels is refused, one of one channel is read")
    ends = [
        max((int(s.time_us.max()) for s in spans if s.time_us is not None and s.n), default=-1)
        for spans in found
        if spans
    ]
    if len(ends) == 2 and ends[0] >= 0 and ends[0] != ends[1]:
        raise CheckFailure(f"a sound of two channels ends at {ends[1]} us, the same in one channel at {ends[0]} us")
    counts = [sum(span.n for span in spans) for spans in found if spans]
    if max(ends) < 0 and counts[0] != counts[1]:
        raise CheckFailure(f"a sound of two channels has {counts[1]} tokens, the same in one channel {counts[0]}")
    return True


def _frame_times(subject: Subject) -> bool:
    times = [0, 40, 80, 400, 420, 900]
    spans = _tokens(subject, samples.clip(times))
    if spans is None:
        return False
    own = [span.time_us for span in spans if span.time_us is not None]
    if not own:
        raise CheckFailure("tokens of a clip have no time_us")
    found = torch.unique(torch.cat(own)).tolist()
    if not set(found) <= {1000 * time for time in times}:
        raise CheckFailure(f"frames at {times} ms have tokens at {[time / 1000 for time in found]} ms")
    return True


def text_makes_no_media(subject: Subject) -> None:
    """16: text that looks like a marker stays text, or is refused."""
    spec_is_there(subject)
    name = subject.spec.name
    guesses = [f"<{name}>", f"<|{name}|>", f"[{name}]", f"<|{name}_start|>x<|{name}_end|>"]
    own = getattr(subject.encoder, "markers", ())
    control = _control_ids(subject)
    for marker in [*subject.markers, *own, *guesses, *control]:
        for text in (marker, f"before {marker} after"):
            try:
                spans = _tokens(subject, text)
            except Exception:  # an error of the wrong class is check 14's affair
                spans = None
            if spans is None:
                continue
            if not _reads_text(subject):
                raise CheckFailure(f"the text {text!r} was encoded by a modality that does not read text/plain")
            if foreign := [span.modality for span in spans if span.modality != name]:
                raise CheckFailure(f"the text {text!r} made a span of {foreign[0]!r}")
            if control and set(control.values()) & {int(i) for span in spans for i in span.data.reshape(-1)}:
                raise CheckFailure(f"the text {text!r} made a control id")


def _control_ids(subject: Subject) -> dict[str, int]:
    """Symbols by name of an encoder that has some."""
    symbols = getattr(subject.encoder, "symbols", {})
    return {str(word): int(number) for word, number in symbols.items()} if isinstance(symbols, dict) else {}


def _reads_text(subject: Subject) -> bool:
    return any(kind.startswith("text/plain") for kind in subject.spec.media_types)


def _short(value: Any) -> str:
    if isinstance(value, (bytes, io.IOBase)):
        return f"{len(value)} bytes" if isinstance(value, bytes) else "a file"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
