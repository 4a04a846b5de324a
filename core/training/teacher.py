"""Learning without forgetting: on what the model could do before, it is taught by the model that it was.

Li and Hoiem, "Learning without Forgetting", ECCV 2016 (arXiv:1606.09282), equation 3 with temperature 1: where an older model
can read a stream, part of the loss is the divergence from what that model says there.

Legend of shapes: N streams, T tokens of a packed batch, t tokens of the streams that are picked, n supervised positions of
these, D hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from watersmeet.core.errors import ConfigError
from watersmeet.core.model.model import LossOutput, Model
from watersmeet.core.stream import NO_TARGET, Packed, pick


class Teacher:
    """The older model and its share of the loss. Streams with a modality or an id that it does not know are not its affair.

    Its vocabulary must be the beginning of the student's: ids that it does not have are given probability 0. Raises
    ConfigError where it has more ids than the student.
    """

    def __init__(self, model: Model, student: Model, share: float) -> None:
        ours, theirs = student.config.vocab_size, model.config.vocab_size
        if theirs > ours:
            raise ConfigError(
                f"loss.teacher has a vocabulary of {theirs} ids and the model one of {ours}; the model must know all of them"
            )
        self.model = model.eval().requires_grad_(False)
        self.model.compute_dtype = student.compute_dtype
        self.share = share

    def blend(self, out: LossOutput, packed: Packed, student: Model) -> LossOutput:
        """`out`, with the loss of the teacher's streams `(1 - share) * CE(target) + share * KL(teacher || student)`.

        What is counted by modality stays the cross entropy of the targets.
        """
        readable = self._readable(packed)
        if not bool(readable.any()):
            return out
        theirs, where_t = pick(packed, readable, self.model.modality_names)
        supervised_n = ((theirs.targets != NO_TARGET) & (theirs.weight != 0)).nonzero().squeeze(1)
        with torch.no_grad():
            expected_nV = self.model.logits(self.model(theirs)[supervised_n]).log_softmax(1)
            missing = student.config.vocab_size - expected_nV.shape[1]
            chance_nV = F.pad(expected_nV.exp(), (0, missing))
            entropy_n = -(expected_nV.exp() * expected_nV).sum(1)
        said_nV = student.logits(out.hidden[where_t[supervised_n]]).log_softmax(1)
        weight_n, target_n = theirs.weight[supervised_n], theirs.targets[supervised_n]
        divergence_n = -(chance_nV * said_nV).sum(1) - entropy_n
        surprise_n = -said_nV.gather(1, target_n.unsqueeze(1)).squeeze(1)
        moved = self.share * (weight_n * (divergence_n - surprise_n)).sum()
        loss_sum = out.loss_sum + moved
        return replace(out, loss_sum=loss_sum, loss=loss_sum / out.weight_sum.clamp(min=1e-20))

    def _readable(self, packed: Packed) -> Tensor:
        """[N] bool: streams with targets of which the teacher knows every modality and every id."""
        known = torch.tensor(
            [name in self.model.modality_names for name in packed.modality_names], device=packed.modality_ids.device
        )
        strange_T = ~known[packed.modality_ids] | (packed.targets >= self.model.config.vocab_size)
        ids = packed.segment(self.model.config.output_modality)
        if ids is not None:
            strange_T[ids.positions] |= ids.data >= self.model.config.vocab_size
        return (_count(strange_T, packed) == 0) & (_count(packed.weight != 0, packed) > 0)


def _count(flag_T: Tensor, packed: Packed) -> Tensor:
    """[N] int64: how often `flag_T` is true in each stream."""
    sums = flag_T.to(torch.int64).cumsum(0)
    return torch.cat([sums.new_zeros(1), sums])[packed.cu_seqlens.to(torch.int64)].diff()
