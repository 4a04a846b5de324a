"""What plain code takes for likely weighs on the choice of the next symbol, and decides nothing."""

import numpy as np
import pytest
import torch

from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.ask import _choose
from watersmeet.pipelines.video_to_spec.hints import NOTHING
from watersmeet.pipelines.video_to_spec.likely import Likely
from watersmeet.pipelines.video_to_spec.prior import NATS, Prior

IDS = {symbol: number for number, symbol in enumerate(markup.symbols())}
END = len(IDS)
BOTH = {"click": "<t1>", "type": "<t0>"}


def after(said, **likely):
    """What is added, by symbol."""
    names = {number: symbol for symbol, number in IDS.items()} | {END: "</s>"}
    known = Likely(targets=likely.pop("targets", {}), **likely)
    more = Prior(IDS, END).after([IDS[symbol] for symbol in said.split()], known)
    return {names[number]: nats for number, nats in more.items()}


@pytest.mark.parametrize(
    ("said", "targets", "more"),
    [
        ("<do-click> <m0> <m2>", BOTH, {"<t1>": NATS}),
        ("<t0> <do-type> <m0> <m2>", BOTH, {"<t0>": NATS}),
        ("<do-click> <m0> <m2>", {"type": "<t0>"}, {}),  # nothing is known of this action
        ("<do-click> <m0>", BOTH, {}),  # the end comes next
        ("<do-click> <m0> <m2> <t0>", BOTH, {}),  # it is named
        ("", BOTH, {}),
    ],
)
def test_only_the_place_of_a_target_has_one_for_a_target(said, targets, more):
    assert after(said, targets=targets) == more


def test_of_a_picture_every_line_is_less_likely():
    more = after("<do-click> <m0> <m2>", targets={"click": NOTHING})
    assert set(more.values()) == {-NATS}
    assert set(more) == {symbol for symbol in IDS if symbol[:2] == "<t" and symbol[2:-1].isdecimal()}


def test_a_step_that_left_the_page_says_so_before_anything_else_is_said():
    step = "<do-click> <m0> <m2> <t0>"
    more = after(step, leads=True)
    assert set(more.values()) == {-NATS} and {"</s>", "<is-modal>", "<can-submit>"} <= set(more)
    assert not {"<go>", "<s0>", "<do-click>"} & set(more)
    assert after(f"{step} <go> <new> <m1>", leads=True) == {}  # it was said
    assert after("", leads=True) == {}  # nobody did anything
    assert after(step, leads=False) == {"<go>": -NATS}
    assert after(step) == {}


def test_whether_somebody_acted_is_asked_before_a_step_and_not_behind_it():
    steps = {symbol for symbol in IDS if symbol[:4] == "<do-"}
    assert after("", acts=False) == dict.fromkeys(steps, -NATS)
    more = after("", acts=True)
    assert set(more.values()) == {-NATS} and {"</s>", "<is-modal>"} <= set(more) and not steps & set(more)
    assert after("<is-toast> <m1>", acts=False) == dict.fromkeys(steps, -NATS)
    assert after("<do-click> <m0> <m2> <t0>", acts=False) == {}
    assert after("", action="navigate") == {"<do-navigate>": NATS}


def test_behind_a_move_stands_the_screen_that_it_resembles():
    assert after("<do-click> <m0> <m2> <go>", targets=BOTH, leads=False, screen="<v3>") == {"<v3>": NATS}
    assert after("<do-click> <m0> <m2> <go>", screen=None) == {}
    assert after("<do-click> <m0> <m2> <go> <new> <m1>", targets=BOTH, leads=True, title="<t5>") == {"<t5>": NATS}
    assert after("<new> <m0>", acts=False) == after("<new>", title="<t5>") == {}


def test_it_wins_among_equals_and_loses_to_a_model_that_is_sure():
    allowed = np.array([False] * 4 + [True] * 4)
    logits = torch.zeros(1, 8)
    token, chances = _choose(logits, allowed, {}, {5: NATS})
    assert token == 5 and chances[5] == pytest.approx(np.exp(NATS) / (np.exp(NATS) + 3))
    logits[0, 6] = NATS + 0.1
    assert _choose(logits, allowed, {}, {5: NATS})[0] == 6
    allowed[5] = False
    assert _choose(torch.zeros(1, 8), allowed, {}, {5: 1e9})[0] != 5
