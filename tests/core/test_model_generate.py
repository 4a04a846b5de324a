"""Generation: greedy, sampled, masked, in batches that streams leave."""

import numpy as np
import pytest
import torch

from watersmeet.core.errors import UsageError
from watersmeet.core.generate import _sample, generate
from watersmeet.core.stream import Stream


@pytest.fixture(scope="module")
def model(kit):
    return kit.model().eval()


def prompts(kit):
    return [kit.stream(9, 0), Stream(spans=(kit.text(5),)), kit.stream(20, 2)]


class Only:
    """Allows the ids of a plan one by one, then everything; ends with `eos` when one id is left."""

    def __init__(self, plan, eos):
        self.plan, self.eos, self.seen, self.budgets = list(plan), eos, [], []

    def allowed(self, remaining):
        self.budgets.append(remaining)
        mask = np.zeros(64, dtype=bool)
        if remaining == 1:
            mask[self.eos] = True
        elif self.plan:
            mask[self.plan[0]] = True
        else:
            mask[:] = True
        return mask

    def accept(self, token):
        self.seen.append(token)
        self.plan = self.plan[1:]


def test_greedy_equals_reading_again_after_every_id(kit, model):
    got = generate(model, prompts(kit), max_new_tokens=6, eos_id=None)
    for prompt, result in zip(prompts(kit), got, strict=True):
        ids, logprob = [], 0.0
        for _ in range(6):
            spans = (*prompt.spans, kit.text(*ids)) if ids else prompt.spans
            with torch.inference_mode():
                row = model.logits(model(kit.pack(Stream(spans=spans)))[-1]).log_softmax(-1)
            ids.append(int(row.argmax()))
            logprob += float(row.max())
        assert result.ids == ids and not result.stopped
        assert result.logprob == pytest.approx(logprob, rel=1e-3)


def test_streams_leave_at_the_end_id_and_others_go_on(kit, model):
    free = generate(model, prompts(kit), max_new_tokens=8, eos_id=None)
    eos = free[1].ids[2]
    ended = generate(model, prompts(kit), max_new_tokens=8, eos_id=eos)
    for one, whole in zip(ended, free, strict=True):
        cut = whole.ids.index(eos) if eos in whole.ids else 8
        assert one.ids == whole.ids[:cut] and one.stopped == (eos in whole.ids)
    assert ended[1].stopped


def test_any_of_several_end_ids_stops_and_is_named(kit, model):
    free = generate(model, prompts(kit), max_new_tokens=8, eos_id=())
    assert all(result.stop_id is None and not result.stopped for result in free)
    ends = (free[0].ids[3], free[1].ids[1])
    for one, whole in zip(generate(model, prompts(kit), max_new_tokens=8, eos_id=ends), free, strict=True):
        cut = next((i for i, token in enumerate(whole.ids) if token in ends), 8)
        assert one.ids == whole.ids[:cut]
        assert one.stop_id == (whole.ids[cut] if cut < 8 else None) and one.stopped == (cut < 8)


def test_sampling_does_not_depend_on_the_rest_of_the_batch(kit, model):
    options = {"max_new_tokens": 8, "eos_id": None, "temperature": 1.0, "top_p": 0.9}
    together = generate(model, prompts(kit), seed=3, **options)
    alone = generate(model, prompts(kit)[:1], seed=3, **options)
    assert together[0].ids == alone[0].ids
    assert generate(model, prompts(kit), seed=4, **options)[0].ids != together[0].ids


def test_top_p_keeps_the_smallest_sufficient_set():
    logits = np.log(np.array([0.1, 0.5, 0.3, 0.1]))
    draws = [_sample(logits, 0.7, u) for u in np.linspace(0, 0.999, 400)]
    share = np.bincount(draws, minlength=4) / 400
    assert share[0] == share[3] == 0 and abs(share[1] - 0.625) < 0.01
    full = np.bincount([_sample(logits, 1.0, u) for u in np.linspace(0, 0.999, 400)], minlength=4) / 400
    np.testing.assert_allclose(full, [0.1, 0.5, 0.3, 0.1], atol=0.01)
    assert _sample(np.array([-np.inf, 0.0, -np.inf]), 1.0, 0.9999) == 1


def test_a_mask_forces_ids_and_the_end(kit, model):
    masks = [Only([7, 8, 9], 2), None, Only([], 2)]
    told = []
    got = generate(
        model,
        prompts(kit),
        max_new_tokens=5,
        eos_id=2,
        mask=masks,
        on_token=lambda index, token: told.append((index, token)),
    )
    assert got[0].ids[:3] == [7, 8, 9] and got[0].stopped
    assert masks[0].seen == [*got[0].ids, 2] and masks[0].budgets == [5, 4, 3, 2, 1][: len(masks[0].seen)]
    assert got[2].stopped
    assert [token for index, token in told if index == 0] == masks[0].seen
    forced = generate(model, prompts(kit)[:1], max_new_tokens=1, eos_id=2, mask=[Only([], 2)])
    assert forced[0].logprob == 0.0 and forced[0].ids == []


def test_bad_requests(kit, model):
    class Nothing(Only):
        def allowed(self, remaining):
            return np.zeros(64, dtype=bool)

    class Short(Only):
        def allowed(self, remaining):
            return np.ones(63, dtype=bool)

    def run(**options):
        generate(model, prompts(kit)[:1], **{"max_new_tokens": 2, "eos_id": 0, **options})

    with pytest.raises(UsageError, match="2 masks for 1 prompts"):
        run(mask=[None, None])
    with pytest.raises(UsageError, match="allows no id"):
        run(mask=[Nothing([], 0)])
    with pytest.raises(UsageError, match="64 ids"):
        run(mask=[Short([], 0)])
    with pytest.raises(UsageError, match="top_p"):
        run(top_p=0.0)
    assert generate(model, [], max_new_tokens=2, eos_id=0) == []
