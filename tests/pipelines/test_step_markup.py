"""Steps written turn by turn and read back; the grammar as an endless source of markup that must hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout import markup as layout
from watersmeet.pipelines.video_to_spec import grammar, markup
from watersmeet.pipelines.video_to_spec.observed import MAX_BOXES, MAX_MOMENTS, MAX_TEXTS, Moment, Observed, SeenText
from watersmeet.pipelines.video_to_spec.sentences import NO_POINTER, PATTERNS, doubt, feature
from watersmeet.pipelines.video_to_spec.spec import Claim, Evidence, Screen, Source, Spec, Step
from watersmeet.pipelines.video_to_spec.vocabulary import tokenizer_model

EOS = 2
IDS = {symbol: 3 + i for i, symbol in enumerate(markup.symbols())}
NAMES = {i: symbol for symbol, i in IDS.items()}
SIZE = len(IDS) + 10
SOURCE = Source(path="a.mp4", duration_s=40.0, frames=1200, width=1280, height=720)
LONGEST = 14  # a value that was typed and a new screen, and the end


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def moment(tenths):
    """A moment of which the frame appeared 20 ms before; 30 frames a second."""
    shown_us = max(0, tenths * 100_000 - 20_000)
    return Moment(time_us=tenths * 100_000, frame=shown_us * 3 // 100_000, shown_us=shown_us)


def observed(tenths, texts=(), boxes=(), came=0):
    """came: how many of the texts, the last ones, were not there before."""
    first = len(texts) - came
    seen = [SeenText(text=text, box=box(20, 20, 120, 50), came=i >= first) for i, text in enumerate(texts)]
    return Observed(
        width=1280, height=720, moments=tuple(moment(t) for t in tenths), texts=tuple(seen), boxes=tuple(boxes)
    )


NAME, SAVE = box(100, 100, 300, 140), box(400, 400, 480, 440)
TURNS = (
    (observed((0,), ("Orders",), came=1), "<new> <m0> <t0>"),
    (
        observed((20, 21, 34, 0, 0), ("Name", "Save", "Ada"), (NAME,), came=1),
        "<do-type> <m0> <m2> <t0> <s0> <is> <t2>",
    ),
    (
        observed((70, 71, 90, 20, 34), ("Ada", "Name", "Ada Lovelace"), (NAME,), came=1),
        "<do-type> <m0> <m2> <t1> <s0> <is> <t2> <after> <t0>",
    ),
    (
        observed((110, 111, 120, 70, 90), ("Save", "New order"), (SAVE,), came=1),
        "<do-click> <m0> <m2> <t0> <s0> <go> <new> <m1> <t1> <is-toast> <m2> <can-submit> <t0> <m1>",
    ),
    (
        observed((180, 181, 185, 110, 120, 210, 211), ("•••••",), came=1),
        "<do-type> <m0> <m2> <is> <t0> <do-key> <m5> <m6> <key-Escape> <go> <v0>",
    ),
    (observed((250, 251, 260, 180, 211)), "<do-scroll> <m0> <m2> <way-down> <is-toast> <m1>"),
    (observed((300, 301, 310, 250, 260), ("Save",), (SAVE,)), "<do-wait> <m4> <m1> <do-click> <m1> <m2>"),
    (observed((350, 351, 360, 300, 310)), ""),
)


def written(*turns, **other):
    return [markup.Written(observed=seen, markup=text.split(), **other) for seen, text in turns]


def step(index, start, end, action, target=None, text=None, place=None, come="s1", go="s1", confidence=1.0):
    return Step(
        index=index,
        start_s=start / 10,
        end_s=end / 10,
        action=action,
        target=target,
        text=text,
        box=None if place is None else (place.x0, place.y0, place.x1, place.y1),
        from_screen=come,
        to_screen=go,
        evidence=(cite(start), cite(end)),
        confidence=confidence,
    )


def cite(tenths):
    shown = max(0, tenths * 100_000 - 20_000)
    return Evidence(t_s=shown / 1e6, frame=shown * 3 // 100_000)


STEPS = (
    step(1, 20, 34, "type", "Name", "Ada", NAME),
    step(2, 70, 90, "type", "Name", " Lovelace", NAME),
    step(3, 110, 120, "click", "Save", None, SAVE, go="s2"),
    step(4, 180, 185, "type", None, "•••••", come="s2", go="s2"),
    step(5, 210, 211, "key", None, "Escape", come="s2", go="s1"),
    step(6, 250, 260, "scroll", None, "down"),
    step(7, 260, 301, "wait"),
    step(8, 301, 310, "click", confidence=0.5),
)
SPEC = Spec(
    source=SOURCE,
    screens=(
        Screen(id="s1", title="Orders", first_seen_s=0.0, thumbnail="frames/s1.png"),
        Screen(id="s2", title="New order", first_seen_s=11.08, thumbnail="frames/s2.png"),
    ),
    steps=STEPS,
    features=(Claim(name="Save", description=feature("submit", "Save"), evidence=(cite(111),)),),
    patterns=(Claim(name="toast", description=PATTERNS["toast"], evidence=(cite(120), cite(251))),),
    open_questions=(NO_POINTER, doubt(STEPS[7], "hover")),
)


@pytest.fixture(scope="module")
def compiled():
    return grammar.StepGrammar(IDS, SIZE, EOS)


def test_turns_are_read_into_the_specification_that_they_say():
    turns = written(*TURNS)
    turns[6] = markup.Written(
        observed=turns[6].observed,
        markup=turns[6].markup,
        confidences=(1.0, 0.9),
        doubts=(markup.Doubt(step=1, other="hover"),),
    )
    found = markup.decode(turns, SOURCE, blind=True)
    assert found.warnings == () and found.spec == SPEC


def test_confidences_are_those_of_the_steps_of_each_turn():
    turns = written(*TURNS[:4])
    turns += written(TURNS[4], confidences=(0.25, 0.75)) + written(TURNS[5], confidences=(0.5,))
    assert [s.confidence for s in markup.decode(turns, SOURCE).spec.steps] == [1, 1, 1, 0.25, 0.75, 0.5]


def test_a_step_said_late_stands_where_it_began_and_its_doubt_follows_it():
    """The second step said began first; what is asked is about it, by the number that it has in the end."""
    turn = observed((50, 51, 52, 10, 30))
    said = markup.Written(
        observed=turn,
        markup="<do-click> <m0> <m2> <do-hover> <m3> <m4>".split(),
        doubts=(markup.Doubt(step=0, other="key"), markup.Doubt(step=1, other="wait")),
    )
    spec = markup.decode([*written(TURNS[0]), said], SOURCE).spec
    assert [(s.index, s.action, s.start_s) for s in spec.steps] == [(1, "hover", 1.0), (2, "click", 5.0)]
    assert spec.open_questions == (doubt(spec.steps[1], "key"), doubt(spec.steps[0], "wait"))


def test_the_grammar_allows_what_is_written_and_nothing_that_is_made_up(compiled):
    seen_s = []
    for turn, text in TURNS:
        mask = compiled.mask(turn, screens=seen_s)
        for symbol in text.split():
            allowed = mask.allowed(100)
            assert allowed[IDS[symbol]], symbol
            for letter, count in (("m", len(turn.moments)), ("t", len(turn.texts)), ("s", len(turn.boxes))):
                assert not allowed[IDS[f"<{letter}{count}>"]]
            mask.accept(IDS[symbol])
        assert mask.allowed(100)[EOS]
        if "<new>" in text:
            number = int(text.split("<new> <m")[1][0])
            seen_s = [*seen_s, turn.moments[number].shown_us / 1e6]


SEEN = TURNS[4][0]


@pytest.mark.parametrize(
    ("before", "screens", "refused", "taken"),
    [
        ("", [], "<do-click>", "<new>"),
        ("", [0.0], "<new>", "<do-click>"),
        ("<new> <m0> <t0>", [], "<do-click>", "</s>"),
        ("<do-click> <m2>", [0.0], "<m1>", "<m2>"),
        ("<do-click> <m2>", [0.0], "<m4>", "<m6>"),
        ("<do-click> <m0> <m2> <do-click> <m2>", [0.0], "<m1>", "<m2>"),
        ("<do-click> <m2> <m2> <do-wait> <m4>", [0.0], "<m3>", "<m1>"),
        ("<go> <new>", [0.0, 18.0], "<m0>", "<m1>"),
        ("<go>", [0.0, 21.5], "<new>", "<v1>"),
        ("<go>", [0.0], "<v1>", "<v0>"),
        ("<go> <new> <m1> <go>", [0.0], "<v2>", "<v1>"),
        ("<is-toast>", [0.0], "<m7>", "<m0>"),
        ("<do-click> <m1> <m2>", [0.0], "<is>", "<t0>"),
        ("<do-click> <m1> <m2>", [0.0], "<key-Enter>", "<go>"),
        ("<do-type> <m1> <m2> <is> <t0>", [0.0], "<after>", "</s>"),  # nothing stood there before
    ],
)
def test_rules_that_the_grammar_adds(compiled, before, screens, refused, taken):
    mask = compiled.mask(SEEN, screens=screens)
    for symbol in before.split():
        assert mask.allowed(100)[IDS[symbol]]
        mask.accept(IDS[symbol])
    allowed = mask.allowed(100)
    assert not allowed[IDS[refused]] and allowed[IDS.get(taken, EOS)]
    with pytest.raises(DecodeError, match="does not continue the step markup"):
        compiled.mask(SEEN, screens=screens).accept(IDS["<after>"])


def test_what_was_typed_came_and_what_it_was_added_to_did_not(compiled):
    seen = observed((20, 21, 34, 0, 0), ("Ada", "Name", "Ada Lovelace", "Saved"), (NAME,), came=2)
    mask = compiled.mask(seen, screens=[0.0])
    texts = [IDS[f"<t{i}>"] for i in range(4)]

    def after(*symbols):
        for symbol in symbols:
            mask.accept(IDS[symbol])
        return mask.allowed(100)[texts].tolist()

    assert after("<do-type>", "<m0>", "<m2>") == [True] * 4  # a target may be any
    assert after("<t1>", "<is>") == [False, False, True, True]
    assert after("<t2>", "<after>") == [True, True, False, False]
    assert after("<t0>", "<can-submit>") == [True] * 4
    nothing_came = compiled.mask(observed((20, 21, 34, 0, 0), ("Ada",)), screens=[0.0])
    for symbol in ("<do-type>", "<m0>", "<m2>"):
        nothing_came.accept(IDS[symbol])
    assert not nothing_came.allowed(100)[IDS["<is>"]]


def test_without_texts_nothing_is_begun_that_needs_one(compiled):
    mask = compiled.mask(observed((20, 21, 22, 0, 0)), screens=[0.0])
    assert not mask.allowed(100)[IDS["<can-submit>"]]
    for symbol in ("<do-type>", "<m0>", "<m1>"):
        mask.accept(IDS[symbol])
    assert not mask.allowed(100)[IDS["<is>"]] and mask.allowed(100)[EOS]


def drawn(mask, rng, budget):
    out = []
    for remaining in range(budget, 0, -1):
        ids = np.flatnonzero(mask.allowed(remaining))
        # references are many, and the end is one: a symbol of another kind is as likely as one of them
        kinds = {NAMES.get(int(i), "")[:2] for i in ids}
        kind = rng.choice(sorted(kinds))
        token = int(rng.choice([i for i in ids if NAMES.get(int(i), "")[:2] == kind]))
        mask.accept(token)
        if token == EOS:
            return out
        out.append(NAMES[token])
    raise AssertionError("the budget ran out before the end")


@st.composite
def recordings(draw):
    """What could be observed: turns in order, each with moments in their slots and a few texts and boxes."""
    at, last, turns = 0, (0, 0), []
    for _ in range(draw(st.integers(1, 5))):
        texts = draw(st.lists(st.sampled_from(["Save", "Ada", "Ada L", "New order"]), max_size=4))
        places = draw(
            st.lists(st.sampled_from([NAME, SAVE, box(1275, 0, 1300, 20), box(1290, 0, 1300, 9)]), max_size=3)
        )
        if not turns:
            turns.append(observed((0,), texts, places))
            continue
        at += draw(st.integers(2, 60))
        change, end = at, at + draw(st.integers(0, 20))
        further = sorted(draw(st.lists(st.integers(at, at + 20), max_size=4)))
        slots = (max(0, change - 1), change, end, *last, *(t for k in further for t in (max(0, k - 1), k)))
        turns.append(observed(slots, texts, places, came=len(texts) // 2))
        last, at = (max(0, change - 1), end), max(end, *further, 0) if further else end
    return turns


@given(recordings(), st.integers(0, 2**32 - 1), st.integers(16, 90))
@settings(max_examples=40)
def test_whatever_the_grammar_allows_is_read_without_a_loss(compiled, turns, seed, budget):
    """It ends within its budget, nothing of it is dropped, and what is read is a valid specification."""
    rng, reader, said = np.random.default_rng(seed), markup.Reader(SOURCE), []
    for turn in turns:
        mask = compiled.mask(turn, screens=[screen.first_seen_s for screen in reader.screens])
        one = markup.Written(observed=turn, markup=drawn(mask, rng, budget))
        reader.read(one)
        said.append(one)
    found = markup.decode(said, SOURCE)
    assert found.warnings == () and found == reader.done()
    symbols = [symbol for one in said for symbol in one.markup]
    assert len(found.spec.steps) == sum(symbol.startswith("<do-") for symbol in symbols)
    assert len(found.spec.screens) == symbols.count("<new>")
    starts = [s.start_s for s in found.spec.steps]
    assert starts == sorted(starts) and all(s.start_s <= s.end_s for s in found.spec.steps)
    known = {m.evidence for turn in turns for m in turn.moments}
    assert {e for _, proof in found.spec.proofs() for e in proof} <= known


@pytest.mark.parametrize("budget", range(16, 16 + LONGEST + 2))
def test_the_longest_that_may_be_begun_still_ends(compiled, budget):
    """Always the symbol that leads furthest: a value that was typed, then a new screen."""
    wish = "<do-type> <m0> <m0> <t0> <s0> <is> <t0> <after> <t0> <go> <new> <m0> <t0>".split()
    turn = observed((20,), ("Save",), (SAVE,))
    mask = compiled.mask(turn, screens=[0.0])
    for position, remaining in enumerate(range(budget, 0, -1)):
        allowed = mask.allowed(remaining)
        want = IDS[wish[position % len(wish)]]
        token = want if allowed[want] else EOS
        assert allowed[token]
        mask.accept(token)
        if token == EOS:
            break
    assert token == EOS and position > 2


def test_the_last_screen_is_the_last_that_is_offered(compiled):
    full = [0.0] * markup.MAX_SCREENS
    mask = compiled.mask(SEEN, screens=full)
    mask.accept(IDS["<go>"])
    allowed = mask.allowed(50)
    assert not allowed[IDS["<new>"]] and allowed[IDS[f"<v{markup.MAX_SCREENS - 1}>"]]


def test_what_a_careless_writer_says_is_dropped_with_a_warning():
    turns = [
        (TURNS[0][0], "<t3> <do-click> <m0> <m0> <new> <m9> <new> <m0> <t0>"),
        (TURNS[1][0], "<do-click> <m14> <m15> <do-click> <m2> <m0> <do-click> <m0> <m1> <t39> <s5>"),
        (TURNS[3][0], "<is-toast> <can-busy> <t0> <go> <v7> <go> <new> <m1>"),
        (TURNS[2][0], "<go> <new> <m1> <is-modal> <m9> <is-modal> <m1> <m2>"),
    ]
    found = markup.decode(written(*turns), SOURCE)
    assert [(s.start_s, s.target, s.box) for s in found.spec.steps] == [(2.0, None, None)]
    assert [(c.name, c.evidence) for c in found.spec.patterns] == [("modal", (cite(71),))]
    assert found.spec.features == () and [s.title for s in found.spec.screens] == ["Orders", "Screen 2"]
    assert len(found.warnings) == 17
    with pytest.raises(DecodeError, match="position 3 of the markup holds '<b>'"):
        markup.decode(written((TURNS[0][0], "<new> <m0> <t0> <b>")), SOURCE)


@given(st.lists(st.lists(st.sampled_from(markup.symbols()), max_size=30), max_size=3))
@settings(max_examples=40)
def test_any_list_of_symbols_is_read(texts):
    turns = [markup.Written(observed=SEEN, markup=text) for text in texts]
    assert isinstance(markup.decode(turns, SOURCE).spec, Spec)


@pytest.mark.parametrize(
    ("whole", "before", "rest"),
    [
        ("Ada Lovelace", "Ada", " Lovelace"),
        ("Ada Lovelace", "Ada Lovelace", None),
        ("Ada Lovelace", "Lovelace", None),
        ("Ada  ", "Ada", None),
        ("Ada", "", None),
        ("Northgate 21 West", "Northgale 21", " West"),
        ("A b", "A", " b"),
        ("X b", "A", None),
    ],
)
def test_what_was_added_is_what_follows_even_if_the_beginning_was_misread(whole, before, rest):
    assert markup.added(whole, before) == rest


def test_the_symbols_are_those_of_the_layout_markup_and_new_ones():
    from watersmeet.tokenizers.text.vocabulary import load_vocabulary

    assert len(set(markup.symbols())) == len(markup.symbols())
    assert not set(markup.own_symbols()) & set(layout.symbols())
    assert set(markup.symbols()) - set(markup.own_symbols()) <= set(layout.symbols())
    assert set(markup.symbols()) <= set(load_vocabulary(tokenizer_model()).symbols)
    few = {k: v for k, v in IDS.items() if k != "<go>"}
    with pytest.raises(ConfigError, match="lacks 1 step symbols, <go> first"):
        grammar.StepGrammar(few, SIZE, EOS)


def test_what_is_observed_is_within_what_can_be_referred_to():
    with pytest.raises(ConfigError, match="no moment"):
        Observed(width=1, height=1, moments=())
    for many in (
        {"moments": (moment(1),) * (MAX_MOMENTS + 1)},
        {"texts": (SeenText(text="a", box=NAME),) * (MAX_TEXTS + 1)},
        {"boxes": (NAME,) * (MAX_BOXES + 1)},
    ):
        with pytest.raises(
            ConfigError, match=f"a turn has {len(next(iter(many.values())))} {next(iter(many))}, at most"
        ):
            Observed(**({"width": 1, "height": 1, "moments": (moment(1),)} | many))
    with pytest.raises(ConfigError, match="frame 2 is shown from 11 us on, after the moment at 10 us"):
        Observed(width=1, height=1, moments=(Moment(time_us=10, frame=2, shown_us=11),))
    assert (moment(3).t_s, moment(3).evidence) == (0.3, Evidence(t_s=0.28, frame=8))
