"""What plain code takes for the target of an action weighs on the choice of the next symbol, and decides nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from watersmeet.pipelines.video_to_spec.ask import _PRIOR, _choose, _Talk

SYMBOLS = {"<do-click>": 0, "<do-type>": 1, "<m0>": 2, "<m2>": 3, "<t0>": 4, "<t1>": 5, "<s0>": 6, "</s>": 7}


@pytest.fixture
def talk():
    made = _Talk.__new__(_Talk)
    made.text = SimpleNamespace(symbols=SYMBOLS)
    made._actions = {0: "click", 1: "type"}
    return made


@pytest.mark.parametrize(
    ("said", "likely", "more"),
    [
        ("<do-click> <m0> <m2>", {"click": "<t1>", "type": "<t0>"}, {5: _PRIOR}),
        ("<t0> <do-type> <m0> <m2>", {"click": "<t1>", "type": "<t0>"}, {4: _PRIOR}),
        ("<do-click> <m0> <m2>", {"type": "<t0>"}, {}),  # nothing is known of this action
        ("<do-click> <m0>", {"click": "<t1>"}, {}),  # the end comes next
        ("<do-click> <m0> <m2> <t0>", {"click": "<t1>"}, {}),  # it is named
        ("", {"click": "<t1>"}, {}),
    ],
)
def test_only_the_place_of_a_target_has_a_prior(talk, said, likely, more):
    assert talk._prior([SYMBOLS[symbol] for symbol in said.split()], likely) == more


def test_it_wins_among_equals_and_loses_to_a_model_that_is_sure():
    allowed = np.array([False] * 4 + [True] * 4)
    logits = torch.zeros(1, 8)
    token, chances = _choose(logits, allowed, {}, {5: _PRIOR})
    assert token == 5 and chances[5] == pytest.approx(np.exp(_PRIOR) / (np.exp(_PRIOR) + 3))
    logits[0, 6] = _PRIOR + 0.1
    assert _choose(logits, allowed, {}, {5: _PRIOR})[0] == 6
    allowed[5] = False
    assert _choose(torch.zeros(1, 8), allowed, {}, {5: 1e9})[0] != 5
