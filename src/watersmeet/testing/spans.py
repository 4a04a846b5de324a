"""Checks 4 to 8 and 11: what the encoder gives. Shapes: n tokens of a span, k coordinates of a token."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from watersmeet.core.errors import DecodeError, WatersmeetError
from watersmeet.core.stream import Span, Stream, pack
from watersmeet.testing.checks import CheckFailure, NotApplicable
from watersmeet.testing.loading import spec_is_there
from watersmeet.testing.samples import Samples
from watersmeet.testing.subject import Example, Subject
from watersmeet.testing.worker import columns, prints


def columns_agree(subject: Subject) -> None:
    """4: spans of the modality, whole, finite, and alike enough to stand in one batch."""
    spec_is_there(subject)
    own = subject.spec.name
    for index, example in enumerate(subject.examples):
        found = example.spans
        if not any(span.n for span in found):
            raise CheckFailure(f"item {index} gave no token, expected at least one, or DecodeError")
        if own not in {span.modality for span in found}:
            raise CheckFailure(f"item {index} gave spans of {found[0].modality!r}, expected {own!r}")
        for span in found:
            _check_span(span, f"item {index}", subject)
    pack([Stream(spans=example.spans) for example in subject.examples])


def _check_span(span: Span, where: str, subject: Subject) -> None:
    if span.modality != subject.spec.name and span.modality not in subject.registry.modality_names():
        raise CheckFailure(f"{where} gave a span of {span.modality!r}, which no plugin brings")
    data = span.data
    if data.device.type != "cpu" or data.requires_grad:
        raise CheckFailure(f"{where}: column data is on {data.device} with requires_grad={data.requires_grad}")
    if data.is_floating_point() and not bool(torch.isfinite(data).all()):
        raise CheckFailure(f"{where}: column data holds NaN or infinity")


def order_does_not_matter(subject: Subject) -> None:
    """5: an item's spans depend on the item alone."""
    spec_is_there(subject)
    first = [[columns(span) for span in one.spans] for one in subject.examples]
    backwards = subject.new_encoder()
    again = [[columns(s) for s in backwards.encode(one.item)] for one in reversed(subject.examples)]
    repeated = [[columns(s) for s in subject.encoder.encode(one.item)] for one in subject.examples]
    for index, one in enumerate(subject.examples):
        alone = [columns(span) for span in subject.new_encoder().encode(one.item)]
        for what, found in (
            ("alone", alone),
            ("in another order", again[-1 - index]),
            ("for the second time", repeated[index]),
        ):
            if found != first[index]:
                raise CheckFailure(f"item {index} encoded {what} gives other columns than before")


def keys_tell_content(subject: Subject) -> None:
    """6: equal content has one key everywhere; other content, settings or versions have others."""
    spec_is_there(subject)
    here = subject.prints
    for index, one in enumerate(subject.examples):
        if prints(subject.new_encoder().encode(one.item)) != here[index]:
            raise CheckFailure(f"item {index} has another key when it is encoded again")
    if subject.there[1] != here:
        raise CheckFailure("an item has another key in another process; a key must not come from hash(), id() or time")
    owner: dict[bytes, tuple[int, bytes]] = {}
    for index, pairs in enumerate(here):
        for print_, key in pairs:
            other, same = owner.setdefault(key, (index, print_))
            if same != print_:
                raise CheckFailure(f"items {other} and {index} have different tokens and one key")
    _keys_tell_settings(subject)
    _keys_tell_version(subject)
    _keys_tell_no_form(subject)


def _keys_tell_settings(subject: Subject) -> None:
    example = subject.examples[0]
    given = [*subject.variants] or _varied(subject.encoder.settings)
    for change in given:
        try:
            spans = subject.new_encoder({**subject.settings, **change}).encode(example.item)
        except WatersmeetError:
            continue  # a value that this setting cannot have
        found = prints(spans)
        keys = {key for _, key in subject.prints[0]}
        changed = [columns_ for columns_, _ in found] != [columns_ for columns_, _ in subject.prints[0]]
        if changed and keys & {key for _, key in found}:
            name, value = next(iter(change.items()))
            raise CheckFailure(f"with {name} = {value!r} an item has other tokens and the same key")


def _varied(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One change at a time that a setting of its kind may well take."""
    changes: list[dict[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, bool):
            changes.append({name: not value})
        elif isinstance(value, int):
            changes += [{name: value * 2}, {name: value + 1}, {name: max(1, value // 2)}]
        elif isinstance(value, float):
            changes += [{name: value / 2}, {name: value * 2}]
    return changes


def _keys_tell_version(subject: Subject) -> None:
    cls = type(subject.encoder)
    home: Any = cls if isinstance(vars(cls).get("VERSION"), int) else sys.modules.get(cls.__module__)
    version = getattr(home, "VERSION", None)
    if not isinstance(version, int):
        raise CheckFailure(f"neither {cls.__name__} nor its module {cls.__module__} has an integer VERSION")
    item = subject.examples[0].item
    home.VERSION = version + 1
    try:
        after = subject.new_encoder().encode(item)
    finally:
        home.VERSION = version
    if {key for _, key in subject.prints[0]} & {span.key for span in after}:
        raise CheckFailure("another VERSION gives the same key")


def _keys_tell_no_form(subject: Subject) -> None:
    """A file's bytes have the key of the file, where both are read."""
    for index, one in enumerate(subject.examples):
        if not isinstance(one.item, (bytes, Path)):
            continue
        raw = one.item if isinstance(one.item, bytes) else one.item.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "item"
            path.write_bytes(raw)
            for form, item in (("its bytes", raw), ("a Path", path), ("the name of a file", str(path))):
                try:
                    spans = subject.encoder.encode(item)
                except DecodeError:
                    continue
                # for text a name is a text of its own
                same_tokens = [columns(span) for span in spans] == [columns_ for columns_, _ in subject.prints[index]]
                if same_tokens and prints(spans) != subject.prints[index]:
                    raise CheckFailure(f"item {index} has another key when it is given as {form}")


def stays_within_max_tokens(subject: Subject) -> None:
    """7: no item has more tokens than the encoder says."""
    spec_is_there(subject)
    most = _max_tokens(subject)
    for index, item in enumerate([*(one.item for one in subject.examples), *subject.odd_items]):
        try:
            n = sum(span.n for span in subject.encoder.encode(item))
        except DecodeError:
            continue
        except Exception as error:  # the plugin's own code
            raise CheckFailure(
                f"extreme item {index} ({_short(item)}) raised {type(error).__name__}: {error}"
            ) from error
        if n > most:
            raise CheckFailure(f"item {index} ({_short(item)}) gave {n} tokens, but max_tokens is {most}")


def _max_tokens(subject: Subject) -> int:
    most = getattr(subject.encoder, "max_tokens", None)
    if most is None:
        if subject.spec.atomic:
            raise CheckFailure("an atomic modality needs a property max_tokens of its encoder, and there is none")
        raise NotApplicable("the encoder has no max_tokens, which only atomic modalities need")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise CheckFailure(f"max_tokens is {most!r}, expected an integer of at least 1")
    return most


def reaches_max_tokens(subject: Subject) -> None:
    """8: some item has exactly as many tokens as the encoder says."""
    spec_is_there(subject)
    most = _max_tokens(subject)
    make = getattr(subject.encoder, "largest", None)
    given = subject.largest
    if given is None and callable(make):
        given = [make()]
    if given is None:
        counts = [_grown(subject, one, most) for one in subject.samples if one.grow is not None]
    else:
        counts = [sum(span.n for span in subject.encoder.encode(item)) for item in given]
    if most in counts:
        return
    if not counts:
        raise CheckFailure("there is no largest item to try: give the encoder a method largest()")
    raise CheckFailure(f"the largest item tried gives {max(counts)} tokens, but max_tokens is {most}")


def _grown(subject: Subject, samples: Samples, most: int) -> int:
    """Tokens of the largest made-up item that is read: doubled until it is refused, then halved in between."""

    def count(size: int) -> int | None:
        assert samples.grow is not None
        try:
            return sum(span.n for span in subject.encoder.encode(samples.grow(size)))
        except DecodeError:
            return None

    best, low, high, flat = 0, 1, samples.start, 0
    while high <= samples.largest and flat < 3:
        found = count(high)
        if found is None:
            break
        if found >= most:
            return found
        flat = flat + 1 if found <= best else 0
        best, low, high = max(best, found), high, 2 * high
    if flat == 3 or high > samples.largest:
        return best  # it is read at any size, and more tokens do not come of it
    while high - low > 1:
        middle = (low + high) // 2
        found = count(middle)
        if found is None:
            high = middle
        else:
            best, low = max(best, found), middle
    return best


def positions_are_in_order(subject: Subject) -> None:
    """11: time moves on, coordinates are not negative, and blocks are whole."""
    spec_is_there(subject)
    for index, example in enumerate(subject.examples):
        _check_positions(example, f"item {index}", subject.spec.atomic)


def _check_positions(example: Example, where: str, atomic: bool) -> None:
    for span in example.spans:
        if bool((span.coords < 0).any()):
            raise CheckFailure(f"{where}: a coordinate is {int(span.coords.min())}, expected 0 or more")
        if span.time_us is not None:
            later = span.time_us[1:] - span.time_us[:-1]
            if bool((later < 0).any()):
                token = int((later < 0).nonzero()[0]) + 1
                raise CheckFailure(f"{where}: time_us goes back at token {token}")
            places = torch.cat([span.coords, span.time_us.unsqueeze(1)], dim=1)
            if len(torch.unique(places, dim=0)) < span.n:
                raise CheckFailure(f"{where}: two tokens have the same time_us and the same coordinates")
        _check_block(span, where, atomic)


def _check_block(span: Span, where: str, atomic: bool) -> None:
    if bool((span.block < -1).any()):
        raise CheckFailure(f"{where}: block is {int(span.block.min())}, expected -1 or more")
    if not bool((span.block >= 0).any()):
        return
    if not atomic:
        raise CheckFailure(f"{where}: tokens see each other both ways (block >= 0) but the modality is not atomic")
    runs = torch.unique_consecutive(span.block)
    if len(runs) != len(torch.unique(runs)):
        raise CheckFailure(f"{where}: the tokens of one block do not stand together")


def _short(item: Any) -> str:
    if isinstance(item, (bytes, str)):
        return f"{len(item)} {'bytes' if isinstance(item, bytes) else 'characters'}"
    return type(item).__name__
