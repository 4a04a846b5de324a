"""From a truth to markup and back: all that the turns support returns, and what they do not support is left out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.labels import labels
from watersmeet.pipelines.video_to_spec.observed import Moment, Observed, SeenText
from watersmeet.pipelines.video_to_spec.sentences import PATTERNS, feature
from watersmeet.pipelines.video_to_spec.spec import Claim, Evidence, Screen, Source, Spec, Step

RATE, FRAMES = 50, 6000
SOURCE = Source(path="a.mp4", duration_s=FRAMES / RATE, frames=FRAMES, width=1280, height=720)
PLACE = Box(x0=100, y0=100, x1=300, y1=140)


def moment(t_s):
    """The moment at `t_s`, a multiple of 20 ms, with its own frame."""
    us = round(t_s * 1e6)
    return Moment(time_us=us, frame=us * RATE // 1_000_000, shown_us=us)


def cite(t_s):
    return moment(t_s).evidence


def observed(times, texts=(), came=(), boxes=()):
    lines = [SeenText(text=text, box=PLACE) for text in texts]
    lines += [SeenText(text=text, box=PLACE, came=True) for text in came]
    return Observed(
        width=1280, height=720, moments=tuple(moment(t) for t in times), texts=tuple(lines), boxes=tuple(boxes)
    )


def step(index, start, end, action, *, target=None, text=None, place=None, come="s1", go="s1"):
    return Step(
        index=index,
        start_s=round(start, 2),
        end_s=round(end, 2),
        action=action,
        target=target,
        text=text,
        box=place and (place.x0, place.y0, place.x1, place.y1),
        from_screen=come,
        to_screen=go,
        evidence=tuple(dict.fromkeys((cite(start), cite(end)))),
        confidence=1.0,
    )


def spec(*steps, screens=1, features=(), patterns=()):
    """Screen number i is called "Page i" and first seen where a step leads to it."""
    seen = {"s1": 0.0} | {s.to_screen: s.start_s + 0.1 for s in reversed(steps) if s.to_screen != "s1"}
    names = [f"s{i + 1}" for i in range(screens)]
    return Spec(
        source=SOURCE,
        screens=tuple(
            Screen(id=n, title=f"Page {n[1:]}", first_seen_s=seen[n], thumbnail=f"frames/{n}.png") for n in names
        ),
        steps=steps,
        features=features,
        patterns=patterns,
        open_questions=(),
    )


def back(made, turns):
    found = markup.decode(
        [markup.Written(observed=o, markup=m) for o, m in zip(turns, labels(made, turns), strict=True)], made.source
    )
    assert found.warnings == ()
    return found.spec


FIRST = observed((0,), came=("Page 1",))


@st.composite
def stories(draw):
    """(a truth, turns that show all of it): steps two to six seconds apart, some of which lead to other screens."""
    at, here, known, steps, turns = 1.0, 1, 1, [], [FIRST]
    last = (0.0, 0.0)
    for index in range(1, draw(st.integers(1, 7)) + 1):
        action = draw(st.sampled_from(["click", "hover", "type", "key", "scroll"]))
        target = draw(st.sampled_from(["Save", "Name", None])) if action in ("click", "type", "hover") else None
        place = draw(st.sampled_from([PLACE, None]))
        word = draw(st.sampled_from(["Ada", "Grace Hopper", "••••"]))
        text = {"type": word, "key": "Enter", "scroll": "down"}.get(action)
        lasting = draw(st.sampled_from([0.2, 0.6, 1.4]))
        goes = here
        if action == "click" and draw(st.booleans()):
            goes = draw(st.integers(1, known + 1))
        # of a hover only the change is seen, which is its start
        start = at + 0.1 if action == "hover" else at
        title = f"Page {goes}"
        steps.append(
            step(index, start, at + 0.1 + lasting, action, target=target, text=text, place=place,
                 come=f"s{here}", go=f"s{goes}")
        )  # fmt: skip
        came = ([title] if goes != here else []) + ([text] if action == "type" else [])
        times = (at, at + 0.1, at + 0.1 + lasting, *last)
        boxes = (Box(x0=0, y0=400, x1=900, y1=700), PLACE)
        turns.append(observed(times, ["Name", "Save", "Elsewhere"], came, boxes))
        last = (at, at + 0.1 + lasting)
        known, here = max(known, goes), goes
        at = round(at + draw(st.sampled_from([2.0, 3.5, 6.0])), 2)
        if draw(st.booleans()):  # something that is no step
            turns.append(observed((at - 0.4, at - 0.3, at - 0.2, *last), ["Name"], ["A note"]))
    return spec(*steps, screens=known), turns


@given(stories())
@settings(max_examples=80)
def test_all_that_the_turns_show_comes_back(story):
    made, turns = story
    assert back(made, turns) == made


def test_what_is_nowhere_to_be_seen_is_left_out():
    """A step without a change, a target and a typed text that nobody read, a box elsewhere, a pattern unseen."""
    made = spec(
        step(1, 2.0, 3.0, "type", target="Street", text="Ada", place=Box(x0=900, y0=0, x1=1000, y1=40)),
        step(2, 9.0, 9.4, "click", target="Save"),
        patterns=(Claim(name="toast", description=PATTERNS["toast"], evidence=(cite(9.2), cite(2.1))),),
    )
    turns = [FIRST, observed((2.0, 2.1, 3.0, 0, 0), ["Name"], ["Save"], [PLACE])]
    assert labels(made, turns) == [
        "<new> <m0> <t0>".split(),
        "<do-type> <m0> <m2> <is-toast> <m1>".split(),
    ]
    found = back(made, turns)
    assert [(s.action, s.target, s.text, s.box) for s in found.steps] == [("type", None, None, None)]
    assert [c.evidence for c in found.patterns] == [(cite(2.1),)]


def test_letters_of_a_line_that_stood_there_are_what_was_added():
    made = spec(step(1, 2.0, 3.0, "type", target="Name", text=" Lovelace"))
    turns = [FIRST, observed((2.0, 2.1, 3.0, 0, 0), ["Name", "Ada"], ["Ada Lovelace"])]
    assert labels(made, turns)[1] == "<do-type> <m0> <m2> <t0> <is> <t2> <after> <t1>".split()
    assert back(made, turns) == made


def test_a_line_that_was_misread_is_referred_to_if_nothing_is_nearer():
    made = spec(step(1, 2.0, 3.0, "click", target="Settings"))
    texts = ["Settinqs", "Sort"]
    assert labels(made, [FIRST, observed((2.0, 2.1, 3.0, 0, 0), texts)])[1][-1] == "<t0>"
    assert labels(made, [FIRST, observed((2.0, 2.1, 3.0, 0, 0), [*texts, "SETTINGS", "Settings"])])[1][-1] == "<t3>"


def test_two_steps_of_one_turn_are_told_by_its_beats():
    """A menu that is open for 0.3 s: both presses lie in one episode."""
    made = spec(step(1, 2.0, 2.3, "click", target="Menu"), step(2, 2.4, 2.7, "click", target="One"))
    turns = [FIRST, observed((2.0, 2.1, 2.7, 0, 0, 2.4, 2.5), ["Menu"], ["One"])]
    written = labels(made, turns)[1]
    assert written == "<do-click> <m0> <m5> <t0> <do-click> <m5> <m2> <t1>".split()


def test_waiting_begins_with_what_came_before_and_ends_with_what_arrives():
    made = spec(step(1, 2.0, 2.4, "click", target="Save"), step(2, 2.4, 7.1, "wait", target="Save"))
    turns = [
        FIRST,
        observed((2.0, 2.1, 2.4, 0, 0), ["Save"], ["Loading"]),
        observed((7.0, 7.1, 7.2, 2.0, 2.4), ["Loading", "Save"], ["Done"]),
    ]
    assert labels(made, turns)[1:] == ["<do-click> <m0> <m2> <t0>".split(), "<do-wait> <m4> <m1> <t1>".split()]
    assert back(made, turns).steps == made.steps


def test_a_screen_that_was_left_unseen_is_gone_to_before_the_next_step():
    made = spec(
        step(1, 2.0, 2.4, "click", target="Gone", go="s2"),
        step(2, 8.0, 8.4, "click", target="Save", come="s2", go="s2"),
        screens=2,
    )
    turns = [FIRST, observed((8.0, 8.1, 8.4, 0, 0), ["Save", "Page 2"])]
    assert labels(made, turns)[1] == "<go> <new> <m0> <t1> <do-click> <m0> <m2> <t0>".split()


def test_features_are_said_where_their_evidence_is_seen():
    claims = tuple(
        Claim(name=name, description=description, evidence=(cite(2.1), cite(2.12), Evidence(t_s=30.0, frame=1500)))
        for name, description in (("Save", feature("submit", "Save")), ("Save it", "Something of one's own."))
    )
    made = spec(step(1, 2.0, 3.0, "click", target="Save"), features=claims)
    turns = [FIRST, observed((2.0, 2.1, 3.0, 0, 0), ["Save", "Save it"])]
    assert labels(made, turns)[1] == "<do-click> <m0> <m2> <t0> <can-submit> <t0> <m1>".split()
