"""Steps written as markup and read back; the grammar as an endless source of markup that must hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout import markup as layout
from watersmeet.pipelines.video_to_spec import grammar, markup
from watersmeet.pipelines.video_to_spec.observed import Moment, Observed, SeenBox, SeenText
from watersmeet.pipelines.video_to_spec.sentences import NO_POINTER, PATTERNS, doubt, feature
from watersmeet.pipelines.video_to_spec.spec import Claim, Screen, Source, Spec, Step

EOS = 2
IDS = {symbol: 3 + i for i, symbol in enumerate(markup.symbols())}
NAMES = {i: symbol for symbol, i in IDS.items()}
SIZE = len(IDS) + 10
SOURCE = Source(path="a.mp4", duration_s=40.0, frames=1200, width=1280, height=720)


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


MOMENTS = tuple(Moment(time_us=k * 1_000_000, frame=30 * k) for k in range(39))
NAME, SAVE = box(100, 100, 300, 140), box(400, 400, 480, 440)
SEEN = Observed(
    width=1280,
    height=720,
    moments=MOMENTS,
    texts=(
        SeenText(text="Orders", box=box(20, 20, 120, 50), moment=0),
        SeenText(text="Name", box=NAME, moment=0),
        SeenText(text="Save", box=SAVE, moment=0),
        SeenText(text="Ada", box=NAME, moment=3),
        SeenText(text="Ada Lovelace", box=NAME, moment=8),
        SeenText(text="Save", box=box(400, 600, 480, 640), moment=0),
        SeenText(text="New order", box=box(20, 20, 140, 50), moment=12),
        SeenText(text="•••••", box=box(100, 200, 300, 240), moment=20),
    ),
    boxes=(SeenBox(box=NAME, moment=2), SeenBox(box=SAVE, moment=11), SeenBox(box=box(890, 60, 1090, 300), moment=15)),
)


def at(k):
    return MOMENTS[k].evidence


def step(index, start, end, action, target=None, text=None, place=None, come="s1", go="s1", confidence=1.0):
    return Step(
        index=index,
        start_s=float(start),
        end_s=float(end),
        action=action,
        target=target,
        text=text,
        box=None if place is None else (place.x0, place.y0, place.x1, place.y1),
        from_screen=come,
        to_screen=go,
        evidence=tuple(dict.fromkeys((at(start), at(end)))),
        confidence=confidence,
    )


STEPS = (
    step(1, 2, 4, "type", "Name", "Ada", NAME),
    step(2, 7, 9, "type", "Name", " Lovelace", NAME),
    step(3, 11, 12, "click", "Save", None, SAVE, go="s2"),
    step(4, 18, 21, "type", None, "•••••", come="s2", go="s2"),
    step(5, 22, 22, "key", None, "Escape", come="s2", go="s1"),
    step(6, 25, 26, "scroll", None, "down"),
    step(7, 30, 31, "click", confidence=0.5),
)
SPEC = Spec(
    source=SOURCE,
    screens=(
        Screen(id="s1", title="Orders", first_seen_s=0.0, thumbnail="frames/s1.png"),
        Screen(id="s2", title="New order", first_seen_s=12.0, thumbnail="frames/s2.png"),
    ),
    steps=STEPS,
    features=(Claim(name="Save", description=feature("submit", "Save"), evidence=(at(12),)),),
    patterns=(Claim(name="toast", description=PATTERNS["toast"], evidence=(at(13), at(31))),),
    open_questions=(NO_POINTER, doubt(STEPS[6], "hover")),
)
WRITTEN = (
    "<no-pointer> <new> <m0> <t0> <do-type> <m2> <m4> <t1> <s0> <is> <t3> "
    "<do-type> <m7> <m9> <t1> <s0> <is> <t4> <after> <t3> "
    "<do-click> <m11> <m12> <t2> <s1> <go> <new> <m12> <t6> <do-type> <m18> <m21> <is> <t7> "
    "<do-key> <m22> <m22> <key-Escape> <go> <v0> <do-scroll> <m25> <m26> <way-down> "
    "<do-click> <m30> <m31> <or> <do-hover> <is-toast> <m13> <m31> <can-submit> <t2> <m12>"
)


@pytest.fixture(scope="module")
def compiled():
    return grammar.StepGrammar(IDS, SIZE, EOS)


def test_a_specification_is_written_and_read_back():
    written = markup.encode(SPEC, SEEN)
    assert " ".join(written) == WRITTEN
    back = markup.decode(written, SEEN, SOURCE)
    assert back.warnings == () and back.spec == SPEC


def test_the_grammar_allows_what_is_written_and_nothing_that_is_made_up(compiled):
    mask = compiled.mask(SEEN)
    for symbol in WRITTEN.split():
        allowed = mask.allowed(100)
        assert allowed[IDS[symbol]], symbol
        known = {"m": len(MOMENTS), "t": len(SEEN.texts), "s": len(SEEN.boxes)}
        for letter, count in known.items():
            assert not allowed[IDS[f"<{letter}{count}>"]]
        mask.accept(IDS[symbol])
    assert mask.allowed(100)[EOS]


@pytest.mark.parametrize(
    ("before", "refused", "taken"),
    [
        ("", "<do-click>", "<new>"),
        ("<new> <m0> <do-click> <m5>", "<m4>", "<m5>"),
        ("<new> <m0> <do-click> <m5> <m7> <do-click>", "<m4>", "<m5>"),
        ("<new> <m6> <go> <new>", "<m5>", "<m6>"),
        ("<new> <m6> <is-toast> <m3>", "<m3>", "<m4>"),
        ("<new> <m0> <go>", "<v1>", "<v0>"),
        ("<new> <m0> <do-click> <m1> <m2>", "<is>", "<t0>"),
        ("<new> <m0> <do-click> <m1> <m2>", "<key-Enter>", "<or>"),
        ("<new> <m0> <do-click> <m1> <m2> <or> <do-key>", "<m3>", "<do-click>"),
        ("<new> <m0> <do-type> <m1> <m2> <is> <t1>", "<t2>", "<after>"),
    ],
)
def test_rules_that_the_grammar_adds(compiled, before, refused, taken):
    mask = compiled.mask(SEEN)
    for symbol in before.split():
        mask.accept(IDS[symbol])
    assert not mask.allowed(100)[IDS[refused]] and mask.allowed(100)[IDS[taken]]
    with pytest.raises(DecodeError, match="does not continue the step markup"):
        compiled.mask(SEEN).accept(IDS["<go>"])


def drawn(compiled, observed, seed, budget):
    rng = np.random.default_rng(seed)
    mask, out = compiled.mask(observed), []
    for remaining in range(budget, 0, -1):
        ids = np.flatnonzero(mask.allowed(remaining))
        # references are many: a symbol of another kind is as likely as one of them
        kinds = {NAMES.get(int(i), "")[:2] for i in ids}
        kind = rng.choice(sorted(kinds))
        token = int(rng.choice([i for i in ids if NAMES.get(int(i), "")[:2] == kind]))
        if token == EOS:
            return out
        mask.accept(token)
        out.append(NAMES[token])
    raise AssertionError("the budget ran out before the end")


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_grammar_allows_is_read_without_a_loss(compiled, seed):
    """Read, written and read again it says the same, and every reading is a valid specification."""
    written = drawn(compiled, SEEN, seed, 12 + seed * 12)
    first = markup.decode(written, SEEN, SOURCE)
    assert first.warnings == ()
    assert len(first.spec.steps) == sum(
        s.startswith("<do-") and (i == 0 or written[i - 1] != "<or>") for i, s in enumerate(written)
    )
    again = markup.decode(markup.encode(first.spec, SEEN), SEEN, SOURCE)
    assert [(s.action, s.start_s, s.end_s, s.target) for s in again.spec.steps] == [
        (s.action, s.start_s, s.end_s, s.target) for s in first.spec.steps
    ]
    assert again.spec.patterns == first.spec.patterns


def test_with_next_to_nothing_observed_there_is_always_a_way_on(compiled):
    bare = Observed(width=100, height=50, moments=MOMENTS[:1])
    source = Source(path="b.mp4", duration_s=1.0, frames=30, width=100, height=50)
    for seed in range(6):
        found = markup.decode(drawn(compiled, bare, seed, 40), bare, source)
        assert found.warnings == () and all(s.target is None for s in found.spec.steps)


def test_what_a_careless_writer_says_is_dropped_with_a_warning():
    text = (
        "<t3> <new> <m0> <do-click> <m99> <m100> <do-click> <m5> <m4> <do-click> <m9> <m10> <t77> <s9> "
        "<do-click> <m3> <m4> <is-toast> <can-busy> <t0> <go> <v7> <new> <m0> <x1> <is-modal> <m200> <m9>"
    )
    found = markup.decode(text.split(), SEEN, SOURCE)
    assert [(s.start_s, s.target, s.box) for s in found.spec.steps] == [(9.0, None, None)]
    assert [(c.name, c.evidence) for c in found.spec.patterns] == [("modal", (at(9),))]
    assert found.spec.features == () and len(found.warnings) == 13
    with pytest.raises(DecodeError, match="position 1 of the markup holds '<b>'"):
        markup.decode(["<no-pointer>", "<b>"], SEEN, SOURCE)


@given(st.lists(st.sampled_from(markup.symbols()), max_size=30))
@settings(max_examples=60)
def test_any_list_of_symbols_is_read(text):
    found = markup.decode(text, SEEN, SOURCE)
    assert isinstance(found.spec, Spec)


def test_places_without_a_box_are_four_bins_of_the_picture():
    place = box(640, 180, 1270, 500)
    one = Spec(
        source=SOURCE,
        screens=SPEC.screens[:1],
        steps=(step(1, 2, 3, "hover", None, None, place),),
        features=(),
        patterns=(),
        open_questions=(),
    )
    written = markup.encode(one, SEEN)
    back = markup.decode(written, SEEN, SOURCE).spec.steps[0].box
    assert np.allclose(back, (640, 180, 1270, 500), atol=1280 / 63 / 2 + 1e-9)


def test_confidences_are_those_of_the_steps():
    found = markup.decode(WRITTEN.split(), SEEN, SOURCE, confidences=[0.25, 0.75, 1, 1, 1, 1, 0.9]).spec
    assert [s.confidence for s in found.steps] == [0.25, 0.75, 1, 1, 1, 1, 0.5]


def test_the_symbols_are_those_of_the_layout_markup_and_new_ones():
    assert len(set(markup.symbols())) == len(markup.symbols())
    assert not set(markup.own_symbols()) & set(layout.symbols())
    assert set(markup.symbols()) - set(markup.own_symbols()) <= set(layout.symbols())
    few = {k: v for k, v in IDS.items() if k != "<go>"}
    with pytest.raises(ConfigError, match="lacks 1 step symbols, <go> first"):
        grammar.StepGrammar(few, SIZE, EOS)


def test_what_is_observed_must_be_in_order():
    with pytest.raises(ConfigError, match="no moment"):
        Observed(width=1, height=1, moments=())
    with pytest.raises(ConfigError, match="not in order"):
        Observed(width=1, height=1, moments=MOMENTS[1::-1])
    with pytest.raises(ConfigError, match="seen at moment 1"):
        Observed(width=1, height=1, moments=MOMENTS[:1], boxes=(SeenBox(box=NAME, moment=1),))
    assert [SEEN.nearest(t) for t in (0.0, 1.5, 1.51, 99.0)] == [0, 1, 2, 38]
