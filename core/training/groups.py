"""Which parameter is updated by what: every parameter falls in exactly one group, by name, or it is an error.

A rule is a regular expression on the full parameter name. Muon's rules also say how the rows of a parameter are cut into
logical matrices: `rows` are the heights of the matrices inside one repeated group, so `(128,)` on [12288, C] means 96 heads,
`(128, 128)` on [24576, C] means 96 heads of a K and a V part, and `(I, I)` on [E, 2I, C] a gate and an up matrix of E experts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from watersmeet.core.errors import WatersmeetError


@dataclass(frozen=True, kw_only=True)
class ParamPlan:
    """How one parameter is updated. `rows` is empty for AdamW; `decay` tells whether weight decay may act on it."""

    name: str
    kind: str
    rule: str
    shape: tuple[int, ...]
    rows: tuple[int, ...] = ()
    decay: bool = True

    @property
    def blocks(self) -> int:
        """Number of logical matrices."""
        if not self.rows:
            return 0
        groups = 1
        for size in self.shape[:-1]:
            groups *= size
        return groups // sum(self.rows) * len(self.rows)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """`cut` names the way rows are cut: "" (AdamW), "whole", "halves", "kda_head", "mla_q" or "mla_kv"."""

    label: str
    pattern: str
    kind: str
    cut: str = ""
    decay: bool = True
    layers: str = "any"


_LAYER = r"(?:^|\.)layers\.\d+\."

# The first rule that matches decides; a name that no rule matches is an error.
_RULES = (
    _Rule(label="adapter", pattern=r"\.lora_[AB]$", kind="adamw", decay=False),
    _Rule(label="embedder", pattern=r"^embedders\.", kind="adamw"),
    _Rule(label="output head", pattern=r"(?:^|\.)lm_head\.weight$", kind="adamw"),
    _Rule(label="decay gate", pattern=r"\.(?:A_log|dt_bias)$", kind="adamw", decay=False),
    _Rule(label="short convolution", pattern=r"conv1d\.weight$", kind="adamw", decay=False),
    _Rule(label="AttnRes query", pattern=r"_res_proj(?:\.weight)?$", kind="adamw", decay=False),
    _Rule(label="norm gain", pattern=r"norm\d*\.weight$", kind="adamw", decay=False),
    _Rule(label="bias", pattern=r"bias$", kind="adamw", decay=False),
    _Rule(
        label="KDA q/k/v per head",
        pattern=_LAYER + r"self_attn\.[qkv]_proj\.weight$",
        kind="muon",
        cut="kda_head",
        layers="kda",
    ),
    _Rule(
        label="MLA q per head",
        pattern=_LAYER + r"self_attn\.q(?:_b)?_proj\.weight$",
        kind="muon",
        cut="mla_q",
        layers="mla",
    ),
    _Rule(
        label="MLA k, v per head",
        pattern=_LAYER + r"self_attn\.kv_b_proj\.weight$",
        kind="muon",
        cut="mla_kv",
        layers="mla",
    ),
    _Rule(label="attention matrix", pattern=_LAYER + r"self_attn\.\w+\.weight$", kind="muon", cut="whole"),
    _Rule(label="router", pattern=_LAYER + r"\w+\.gate\.weight$", kind="muon", cut="whole"),
    _Rule(label="routed experts", pattern=_LAYER + r"\w+\.experts\.w13$", kind="muon", cut="halves"),
    _Rule(label="routed experts", pattern=_LAYER + r"\w+\.experts\.\w+$", kind="muon", cut="whole"),
    _Rule(label="feed-forward matrix", pattern=_LAYER + r"[\w.]+_proj\.weight$", kind="muon", cut="whole"),
)


def _matches(rule: _Rule, name: str, config: Any) -> bool:
    if not re.search(rule.pattern, name):
        return False
    if rule.layers == "any":
        return True
    layer = int(re.search(r"layers\.(\d+)\.", name)[1])  # type: ignore[index]  # the pattern has it
    return bool(config.is_full_attention(layer)) == (rule.layers == "mla")


def _rows(rule: _Rule, shape: tuple[int, ...], config: Any, per_head: bool, split_kv: bool) -> tuple[int, ...]:
    if rule.cut == "halves":
        return (shape[-2] // 2,) * 2
    if rule.cut == "whole" or not per_head:
        return (shape[-2],)
    if rule.cut == "kda_head":
        return (config.kda_head_dim,)
    if rule.cut == "mla_q":
        return (config.qk_head_dim,)
    key, value = config.qk_nope_head_dim, config.v_head_dim
    return tuple(size for size in (key, value) if size) if split_kv else (key + value,)


def plan_parameters(
    named_params: Iterable[tuple[str, torch.Tensor]],
    config: Any,
    *,
    per_head: bool = True,
    split_kv: bool = True,
    muon: bool = True,
) -> dict[str, ParamPlan]:
    """One plan a trainable parameter, by name.

    `config` is the model's configuration (layer kinds and head sizes). Without `muon` its matrices go to AdamW. Raises WatersmeetError naming the first
    parameter that no rule matches or whose shape does not divide into its heads.
    """
    plans: dict[str, ParamPlan] = {}
    for name, param in named_params:
        if not param.requires_grad:
            continue
        shape = tuple(param.shape)
        rule = next((rule for rule in _RULES if _matches(rule, name, config)), None)
        if rule is None:
            raise WatersmeetError(f"optimizer: no rule matches parameter {name!r} {shape}; add one to groups.py")
        kind, label = rule.kind, rule.label
        rows: tuple[int, ...] = ()
        if kind == "muon":
            if len(shape) < 2:
                raise WatersmeetError(f"optimizer: {name!r} has shape {shape}; rule {label!r} wants a matrix")
            rows = _rows(rule, shape, config, per_head, split_kv)
            total = param.numel() // shape[-1]
            if total % sum(rows):
                raise WatersmeetError(
                    f"optimizer: {name!r} has {total} rows, which do not divide into groups of {sum(rows)} ({label})"
                )
            if min(*rows, shape[-1]) < 2:  # a row or column has no orthogonal factor worth the name
                kind, rows, label = "adamw", (), f"{label}, degenerate"
        if not muon:
            kind, rows = "adamw", ()
        decay = kind == "muon" or (rule.decay and len(shape) >= 2)
        plans[name] = ParamPlan(name=name, kind=kind, rule=label, shape=shape, rows=rows, decay=decay)
    return plans


def check_layers(plans: dict[str, ParamPlan], config: Any) -> None:
    """Count what per-head Muon touches in every layer, so that no kind of layer is skipped in silence.

    Raises WatersmeetError naming the layer and the two counts.
    """
    for layer in range(config.num_hidden_layers):
        mine = [plan for name, plan in plans.items() if f"layers.{layer}." in f".{name}"]
        found = sum(plan.blocks for plan in mine if plan.rule.endswith("per head"))
        if config.is_full_attention(layer):
            parts = (config.qk_nope_head_dim > 0) + (config.v_head_dim > 0)
            expected, kind = config.num_attention_heads * (1 + parts), "MLA"
        else:
            expected, kind = 3 * config.kda_num_heads, "KDA"
        if found != expected:
            raise WatersmeetError(
                f"optimizer: layer {layer} ({kind}) has {found} per-head blocks in Muon, expected {expected}; "
                "a projection was renamed or fused, so groups.py must learn its new name"
            )


def group_table(plans: dict[str, ParamPlan]) -> str:
    """Plain text table: rule, optimizer, parameters, blocks, elements."""
    rows: Counter[tuple[str, str, str]] = Counter()
    tensors: Counter[tuple[str, str, str]] = Counter()
    blocks: Counter[tuple[str, str, str]] = Counter()
    for plan in plans.values():
        key = (plan.rule, plan.kind, "yes" if plan.decay else "no")
        elements = 1
        for size in plan.shape:
            elements *= size
        rows[key] += elements
        tensors[key] += 1
        blocks[key] += plan.blocks
    lines = [f"{'group':<28}{'update':<8}{'decay':<7}{'tensors':>8}{'blocks':>8}{'elements':>12}"]
    for key in sorted(rows, key=lambda item: (item[1] != "muon", -rows[item])):
        lines.append(f"{key[0]:<28}{key[1]:<8}{key[2]:<7}{tensors[key]:>8}{blocks[key] or '-':>8}{rows[key]:>12,}")
    lines.append(f"{'all':<43}{sum(tensors.values()):>8}{sum(blocks.values()):>8}{sum(rows.values()):>12,}")
    return "\n".join(lines)
