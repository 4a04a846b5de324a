"""The sixteen checks of a modality, and the class that makes a test of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from watersmeet.plugins.survey import LIMIT_S
from watersmeet.testing import loading, media, spans, vectors
from watersmeet.testing.checks import FAILED, SKIPPED, Check, CheckFailure, Examination, Outcome
from watersmeet.testing.subject import Subject

MODALITY_CHECKS: tuple[Check[Subject], ...] = (
    Check(
        number=1,
        name="light",
        rule="the plugin's module is imported quickly, without torch and without effects",
        reason="every list of plugins imports it, so its cost and its prints are everybody's.",
        fix="install the package, and mend what its import raised; name classes as 'package.module:Class' in the spec, and keep slow imports in that other module.",
        run=loading.loads_light,
    ),
    Check(
        number=2,
        name="contract",
        rule="the spec is written for a contract that this watersmeet keeps",
        reason="a plugin for another contract would fail later, in the middle of somebody's work.",
        fix="give the spec the contract it was written for, and install the watersmeet that keeps it.",
        run=loading.contract_is_known,
    ),
    Check(
        number=3,
        name="workers",
        rule="the encoder can be sent to a spawned process and encodes the same there",
        reason="data is encoded in worker processes, which import everything afresh.",
        fix="keep only plain values in the encoder (no open files, locks, lambdas) and put its class at the top of a module.",
        needs=(4, 5),
        run=loading.works_in_workers,
    ),
    Check(
        number=4,
        name="columns",
        rule="every item gives a list of spans whose columns agree and fit into one batch",
        reason="tokens and their positions, times and targets are read row by row.",
        fix="let Encoder(settings) be a class that can be imported; build each Span from tensors with one first dimension, the same dtype and row shape for every item.",
        run=spans.columns_agree,
    ),
    Check(
        number=5,
        name="order",
        rule="an item's spans do not depend on other items or on earlier calls",
        reason="batches are formed and repeated in any order, and cached spans stand for fresh ones.",
        fix="keep no state between calls of encode, draw no random numbers, and leave the item as it was.",
        needs=(4,),
        run=spans.order_does_not_matter,
    ),
    Check(
        number=6,
        name="key",
        rule="the key tells content, settings and VERSION apart, and is the same in every process",
        reason="a cache that finds another item's key answers with another item's state.",
        fix="key = content_key('NAME', VERSION, self.settings, CONTENT) with an integer VERSION at the top of the module.",
        needs=(4, 5, 3),
        run=spans.keys_tell_content,
    ),
    Check(
        number=7,
        name="limit",
        rule="no item, however odd, has more tokens than max_tokens or breaks the encoder",
        reason="memory and batches are planned with that number.",
        fix="scale down or refuse (DecodeError) what is too large, and give the encoder a property max_tokens.",
        needs=(4,),
        run=spans.stays_within_max_tokens,
    ),
    Check(
        number=8,
        name="largest",
        rule="some item really has max_tokens tokens",
        reason="a number that is never reached wastes memory in every plan made with it.",
        fix="lower max_tokens to what the largest item gives, and return such an item from the encoder's method largest().",
        needs=(4, 7),
        run=spans.reaches_max_tokens,
    ),
    Check(
        number=9,
        name="vectors",
        rule="the embedder gives [n, hidden_size] in its weights' dtype and gradients for all of them, also for n == 0",
        reason="in sharded training every process calls every embedder, and one missing gradient stops all of them.",
        fix="cast the data to the weights' dtype, handle empty tensors by the same path, and use every parameter.",
        needs=(4,),
        run=vectors.embeds_every_count,
    ),
    Check(
        number=10,
        name="apart",
        rule="an item's vectors are the same alone and beside other items",
        reason="what stands in one batch is chance, and must not change an answer.",
        fix="let a token's vector depend on its own data, coordinates and time: no mean, norm or order over the segment.",
        needs=(4, 9),
        run=vectors.embeds_items_apart,
    ),
    Check(
        number=11,
        name="positions",
        rule="times do not go back or coincide, coordinates are not negative, blocks are whole",
        reason="streams of several sources are merged by time, and a block is never cut.",
        fix="count time in whole microseconds of the media's own clock; atomic=True where block >= 0.",
        needs=(4,),
        run=spans.positions_are_in_order,
    ),
    Check(
        number=12,
        name="leak",
        rule="in a whole model that trains, one sample of a batch changes nothing of another",
        reason="a model that sees its neighbours learns what it will not see later.",
        fix="no statistics over a batch (BatchNorm) in the embedder: LayerNorm or RMSNorm over a token instead.",
        needs=(4, 9, 10),
        run=vectors.samples_stay_apart,
    ),
    Check(
        number=13,
        name="roundtrip",
        rule="what a written modality encodes, its decoder gives back",
        reason="training teaches those ids, and users get what the decoder makes of them.",
        fix="make encode and decode inverse, or say in same(item, decoded) how far they may differ.",
        needs=(4,),
        run=media.decodes_what_it_wrote,
    ),
    Check(
        number=14,
        name="damage",
        rule="damaged, empty and wrong items are a DecodeError and nothing else",
        reason="a DecodeError is counted and passed over; anything else ends the run as a bug.",
        fix="raise DecodeError(what was found, what was expected) where a library raises its own error.",
        needs=(4,),
        run=media.refuses_damage,
    ),
    Check(
        number=15,
        name="media",
        rule="pictures are read upright and flat, sounds with all channels, frames at their times",
        reason="cameras turn pictures, files hide pixels, and clips have no even pace.",
        fix="use the host's readers (watersmeet.tokenizers.image.decode) or follow the format's metadata.",
        needs=(4, 5),
        run=media.reads_media_right,
    ),
    Check(
        number=16,
        name="markers",
        rule="no text can make media or control ids",
        reason="whoever writes the text of a prompt would otherwise write its structure.",
        fix="find media by the type of a part, never by a string in a text.",
        needs=(4,),
        run=media.text_makes_no_media,
    ),
)


def examine(subject: Subject) -> Examination[Subject]:
    """The sixteen checks of one modality; nothing runs before an outcome is asked for."""
    return Examination(MODALITY_CHECKS, subject)


class ModalityTests:
    """Sixteen tests of a modality, for pytest; the checks are those of `watersmeet plugins check`.

        from watersmeet.testing import ModalityTests

        class TestSeries(ModalityTests):
            modality = "series"

    is enough where the spec's media types are common ones; else `items` says what to encode. See `Subject` for the rest.
    """

    modality: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    files: ClassVar[Mapping[str, bytes]] = {}
    extremes: ClassVar[Sequence[Any]] = ()
    damaged: ClassVar[Sequence[Any]] = ()
    variants: ClassVar[Sequence[Mapping[str, Any]]] = ()
    markers: ClassVar[Sequence[str]] = ()
    limit_s: ClassVar[float] = LIMIT_S

    def items(self) -> Sequence[Any] | None:
        """At least two different items. None: made-up media of the types that the spec names."""
        return None

    def largest(self) -> Sequence[Any] | None:
        """Items of which one has max_tokens tokens. None: what the encoder's own largest() gives."""
        return None

    def same(self, item: Any, decoded: Any) -> bool:
        """Whether a decoded item is the one that was encoded."""
        return bool(item == decoded)

    _examined: ClassVar[dict[type, Examination[Subject]]] = {}

    def examination(self) -> Examination[Subject]:
        """The checks of this class, whose parts are made once for all its tests."""
        if type(self) not in self._examined:
            if not self.modality:
                raise TypeError(f"{type(self).__name__} names no modality; add a line such as: modality = 'series'")
            self._examined[type(self)] = examine(self.subject())
        return self._examined[type(self)]

    def subject(self) -> Subject:
        """What is examined."""
        return Subject(
            modality=self.modality,
            settings=self.settings,
            files=self.files,
            items=self.items(),
            extremes=self.extremes,
            largest=self.largest(),
            damaged=self.damaged,
            variants=self.variants,
            markers=self.markers,
            same=self.same,
            limit_s=self.limit_s,
        )


def as_test(check: Check[Any]) -> Callable[[Any], None]:
    """A test function, for a class with a method `examination`."""

    def test(self: Any) -> None:
        report(self.examination().outcome(check.number))

    test.__doc__ = f"{check.number}: {check.rule}."
    test.__name__ = f"test_{check.number:02d}_{check.name}"
    return test


def report(outcome: Outcome) -> None:
    """Pass, fail or skip a running test of pytest."""
    __tracebackhide__ = True
    if outcome.state == FAILED:
        # a finding of the kit has said all; where the plugin's own code raised, its traceback shows the line
        own = outcome.cause.__cause__ if isinstance(outcome.cause, CheckFailure) else outcome.cause
        raise AssertionError(outcome.sentence()) from own
    if outcome.state == SKIPPED:
        import pytest

        pytest.skip(outcome.detail)


for _check in MODALITY_CHECKS:
    _test = as_test(_check)
    setattr(ModalityTests, _test.__name__, _test)
