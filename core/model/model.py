"""The whole model: embedders of every modality, the trunk, the head, and the loss.

Legend of shapes: T tokens of a packed batch, N streams, D hidden width, V vocabulary, Q modalities, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from watersmeet.core.cache import Cache
from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import ConfigError, WatersmeetError
from watersmeet.core.model.fused import fused_step, trunk_of
from watersmeet.core.model.joint import Joint
from watersmeet.core.model.kda import KimiDeltaAttention
from watersmeet.core.model.layer import DecoderLayer, Query, Residual
from watersmeet.core.model.loss import linear_cross_entropy, subject_ids
from watersmeet.core.model.moe import LatentMoE, Router, RouterRecord
from watersmeet.core.model.ops import Layout, Linear, RMSNorm, Step
from watersmeet.core.model.stored import stored_views
from watersmeet.core.stream import NO_TARGET, Packed
from watersmeet.kernels.native import Trunk, few_rows


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """What one training or evaluation pass measured.

    loss             scalar, `loss_sum / weight_sum`; differentiable
    loss_sum         scalar, sum of weight * cross entropy in nats; differentiable (for accumulation over micro-batches)
    weight_sum       scalar float32, sum of the weights
    modality_names   the Q names that the next three index
    modality_loss    [Q] float32, sum of weight * cross entropy of the targets of each modality, see `loss.subject_ids`
    modality_weight  [Q] float32
    expert_load      [MoE layers, Q, E] int64, picks of every expert by tokens of each modality
    hidden           [T, D] final hidden state; differentiable
    """

    loss: Tensor
    loss_sum: Tensor
    weight_sum: Tensor
    modality_names: tuple[str, ...]
    modality_loss: Tensor
    modality_weight: Tensor
    expert_load: Tensor
    hidden: Tensor


class Model(nn.Module):
    """A Kimi K3-family transformer over one stream of all modalities.

    `embedders` maps the name of a modality to a module `(data, coords, time_us) -> [n, D]`; they stay in float32.
    `compute_dtype` is the dtype of the activations: parameters of another dtype are cast where they are used, so
    float32 parameters train under bfloat16 activations without a second copy.
    """

    def __init__(self, config: ModelConfig, embedders: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if config.output_modality not in embedders:
            raise ConfigError(
                f"model: output_modality is {config.output_modality!r} but the embedders are for "
                f"{', '.join(sorted(embedders)) or 'nothing'}; it must be one of them"
            )
        if dotted := [name for name in embedders if "." in name]:
            raise ConfigError(f"model: modality {dotted[0]!r} has a dot in its name, which parameter names cannot hold")
        self.config = config
        self.compute_dtype = torch.float32
        self._plan: Trunk | None = None
        d, eps = config.hidden_size, config.rms_norm_eps
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        if config.attn_res_block_size is not None:
            self.output_attn_res_norm, self.output_attn_res_proj = RMSNorm(d, eps), Query(d)
        self.norm = RMSNorm(d, eps)
        self.lm_head = Linear(d, config.vocab_size)
        self.reset_parameters()
        # last, so that initialising the trunk does not redraw what an embedder chose for itself
        self.embedders = nn.ModuleDict(dict(embedders))

    @property
    def modality_names(self) -> tuple[str, ...]:
        """Names of all modalities this model reads, in a fixed order; pass it to `pack`."""
        return tuple(self.embedders)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Matrices ~ N(0, initializer_range); norms one; residual queries zero; decay as the K3 report says."""
        if self.norm.weight.is_meta:
            return  # there is nothing to draw, and torch imports its compiler for it, which takes seconds
        std = self.config.initializer_range
        for module in self.modules():
            if isinstance(module, LatentMoE):
                # drawn one by one as they are stored, so that a seed means the same weights however they are kept
                for weight in stored_views(module.experts.named_parameters(prefix="experts")).values():
                    weight.copy_(torch.empty_like(weight, memory_format=torch.contiguous_format).normal_(std=std))
            elif isinstance(module, (Linear, Router)):
                nn.init.normal_(module.weight, std=std)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)
            elif isinstance(module, Query):
                nn.init.zeros_(module.weight)
        for module in self.modules():
            if isinstance(module, KimiDeltaAttention):
                module.reset_parameters()

    # ---- reading ----------------------------------------------------------------------------------------------

    def embed(self, packed: Packed) -> Tensor:
        """[T, D] in the compute dtype: every segment through its embedder, each row at its position.

        Embedders whose modality is absent add an exact zero, so that every parameter has a gradient in every step.
        """
        x_TD = self.lm_head.weight.new_zeros(packed.T, self.config.hidden_size, dtype=self.compute_dtype)
        for segment in packed.segments:
            if segment.modality not in self.embedders:
                raise WatersmeetError(
                    f"model: the batch holds {segment.n} tokens of modality {segment.modality!r}, but this model reads "
                    f"{', '.join(self.embedders)}; load its plugin or leave it out"
                )
            rows = self.embedders[segment.modality](segment.data, segment.coords, segment.time_us)
            if rows.shape != (segment.n, self.config.hidden_size):
                raise WatersmeetError(
                    f"embedder of modality {segment.modality!r} returned shape {tuple(rows.shape)} for {segment.n} "
                    f"tokens, expected ({segment.n}, {self.config.hidden_size})"
                )
            x_TD = x_TD.index_copy(0, segment.positions, rows.to(x_TD.dtype))
        if torch.is_grad_enabled():
            present = {segment.modality for segment in packed.segments}
            for name, embedder in self.embedders.items():
                if name not in present:
                    zero = [p.reshape(-1)[:0].sum() for p in embedder.parameters() if p.requires_grad]
                    x_TD = x_TD + torch.stack(zero).sum().to(x_TD.dtype) if zero else x_TD
        return x_TD

    def embed_ids(self, ids_n: Tensor) -> Tensor:
        """[n, D] for generated ids, through the embedder of the output modality (no coordinates, no time)."""
        embedder = self.embedders[self.config.output_modality]
        return embedder(ids_n, ids_n.new_zeros(len(ids_n), 0), None).to(self.compute_dtype)

    # ---- the trunk --------------------------------------------------------------------------------------------

    def _trunk(
        self, x_TD: Tensor, layout: Layout | Step, cache: Cache | None, record: RouterRecord | None = None
    ) -> Tensor:
        """Final hidden state [T, D]; a cache's lengths are the caller's to move."""
        residual = Residual((), x_TD)
        for index, layer in enumerate(self._typed_layers()):
            residual = layer(residual, layout, None if cache is None else cache.layers[index], record)
        return self._output(residual)

    def _continue(self, x_TD: Tensor, layout: Layout, cache: Cache) -> Tensor:
        """The same for rows that follow what the cache holds."""
        hidden_TD = self._trunk(x_TD, layout.after(cache.lengths), cache)
        for row, start, end in layout.spans():
            cache.lengths[row] += end - start
        return hidden_TD

    def _typed_layers(self) -> Iterator[DecoderLayer]:
        """The layers under their own type, which a ModuleList forgets."""
        return cast("Iterator[DecoderLayer]", iter(self.layers))

    def _output(self, residual: Residual) -> Tensor:
        plain = self.config.attn_res_block_size is None
        return residual.read(self.norm, None if plain else (self.output_attn_res_norm, self.output_attn_res_proj))[0]

    def forward(self, packed: Packed, *, cache: Cache | None = None, record: RouterRecord | None = None) -> Tensor:
        """Final hidden state [T, D] in the compute dtype, ready for `logits`.

        With a `cache` (no gradient), the batch continues its streams one to one: stream i of the batch follows what
        stream i of the cache has read.
        """
        if cache is not None and cache.num_streams != packed.num_streams:
            raise WatersmeetError(
                f"model: the batch has {packed.num_streams} streams but the cache has {cache.num_streams}; "
                "make the cache with model.new_cache(number of streams)"
            )
        x_TD, layout = self.embed(packed), Layout.of(packed.cu_seqlens, packed.block)
        if record is not None:
            layout = replace(layout, real=record.real_tokens)
        return self._trunk(x_TD, layout, None, record) if cache is None else self._continue(x_TD, layout, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [..., V] of hidden states [..., D]."""
        return self.lm_head(hidden).float() if self._plan is None else few_rows(hidden, self.lm_head.weight)

    def loss(self, packed: Packed, *, real_tokens: int | None = None) -> LossOutput:
        """Next-token loss of a packed batch.

        `real_tokens`: number of leading tokens that are real; a filling sequence behind them must not enter expert
        statistics or balancing. In training mode, call `update_balancing` after every optimizer step.
        """
        names = packed.modality_names
        record = RouterRecord(
            modality_ids=packed.modality_ids,
            num_modalities=len(names),
            real_tokens=packed.T if real_tokens is None else real_tokens,
        )
        hidden_TD = self(packed, record=record)
        record.closed = True
        supervised_n = ((packed.targets != NO_TARGET) & (packed.weight != 0)).nonzero().squeeze(1)
        weight_n = packed.weight[supervised_n]
        loss_sum, nll_n = linear_cross_entropy(
            hidden_TD.index_select(0, supervised_n), self.lm_head.weight, packed.targets[supervised_n], weight_n
        )
        ids_n = subject_ids(packed, self.config.output_modality)[supervised_n]
        weight_sum = weight_n.sum()
        experts = self.config.num_experts
        load = torch.stack(record.load) if record.load else packed.modality_ids.new_zeros(0, len(names), experts)
        return LossOutput(
            loss=loss_sum / weight_sum.clamp(min=1e-20),
            loss_sum=loss_sum,
            weight_sum=weight_sum,
            modality_names=names,
            modality_loss=nll_n.new_zeros(len(names)).index_add_(0, ids_n, nll_n * weight_n),
            modality_weight=nll_n.new_zeros(len(names)).index_add_(0, ids_n, weight_n),
            expert_load=load,
            hidden=hidden_TD,
        )

    def update_balancing(self, reduce: Callable[[Tensor], Tensor] | None = None) -> None:
        """Set every router's bias from what was counted since the last call; call it once an optimizer step.

        `reduce(counts)` sums over data-parallel processes; None for one process.
        """
        for module in self.modules():
            if isinstance(module, Router):
                module.update_bias(reduce)

    def discard_balancing(self) -> None:
        """Forget what was counted since the last update, for a step that is skipped."""
        for module in self.modules():
            if isinstance(module, Router):
                module.counts.zero_()

    # ---- generation -------------------------------------------------------------------------------------------

    def new_cache(self, num_streams: int) -> Cache:
        """Empty cache for `num_streams` streams."""
        return Cache(num_streams, self.config, self.compute_dtype, self.lm_head.weight.device)

    def prefill(self, cache: Cache, packed: Packed, *, chunk: int = 2048) -> Tensor:
        """Read a batch into the cache, about `chunk` tokens at a time; returns the last hidden state of every stream [N, D].

        A block that looks both ways is never cut, so a piece may be longer than `chunk`.
        """
        x_TD, whole = self.embed(packed), Layout.of(packed.cu_seqlens, packed.block)
        last: list[Tensor] = [x_TD[0]] * whole.num_streams
        for piece, start, end in pieces(whole, chunk):
            hidden = self._continue(x_TD[start:end], piece, cache)
            for row, _, stop in piece.spans():
                last[row] = hidden[stop - 1]
        return torch.stack(last)

    def step(self, x_ND: Tensor, cache: Cache) -> Tensor:
        """Final hidden state [N, D] after one more embedded token for every stream of the cache."""
        hidden_ND = None if self._plan is None else fused_step(self._plan, x_ND, cache)
        if hidden_ND is None:
            hidden_ND = self._trunk(x_ND, Step.after(cache.lengths, x_ND.device), cache)
        cache.lengths = [length + 1 for length in cache.lengths]
        return hidden_ND

    def join(self) -> Model:
        """Put matrices that are multiplied together into one block of memory each; see `joint`.

        Values, names and gradients stay as they are. Call it after the last change of device or dtype.
        """
        for module in self.modules():
            for part in vars(module).values():
                if isinstance(part, Joint):
                    part.join()
        return self

    @contextmanager
    def fused(self) -> Iterator[None]:
        """Inside, a step of few streams is one native call where that can be; weights must not change meanwhile."""
        self.join()
        self._plan = trunk_of(self)
        try:
            yield
        finally:
            self._plan = None

    def to_dtype(self, dtype: torch.dtype) -> Model:
        """Store the trunk's matrices in `dtype` and compute in it; what K3 keeps in float32 stays float32.

        Those are the short convolutions, `A_log`, `dt_bias`, KDA's `o_norm`, the router's bias, and all embedders.
        """
        for name, parameter in self.named_parameters():
            if not keeps_float32(name):
                parameter.data = parameter.data.to(dtype)
        self.compute_dtype = dtype
        return self


FLOAT32_NAMES = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")


def keeps_float32(name: str) -> bool:
    """Whether a parameter or buffer of this name is float32 in every checkpoint (K3's rule; embedders are ours)."""
    return name.startswith("embedders.") or name.endswith(FLOAT32_NAMES)


def pieces(whole: Layout, chunk: int) -> Iterator[tuple[Layout, int, int]]:
    """Cut a layout into consecutive (layout, start, end) of about `chunk` rows, never inside a two-way block."""
    bounds, total = whole.bounds, whole.bounds[-1]
    # cut c is allowed when no block has rows on both sides of it
    allowed = set(range(total + 1))
    if whole.block is not None:
        ids = whole.block.tolist()
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, block in enumerate(ids):
            if block >= 0:
                first.setdefault(block, position)
                last[block] = position
        for block, position in first.items():
            allowed -= set(range(position + 1, last[block] + 1))
    start = 0
    while start < total:
        end = min(start + chunk, total)
        while end not in allowed:
            end += 1
        first_stream = next(i for i in range(whole.num_streams) if bounds[i + 1] > start)
        inner = [b for b in bounds if start < b < end]
        cut = [0, *(b - start for b in inner), end - start]
        cu_seqlens = torch.tensor(cut, dtype=torch.int32, device=whole.cu_seqlens.device)
        block = None if whole.block is None else whole.block[start:end]
        yield Layout.of(cu_seqlens, block, first_stream), start, end
        start = end
