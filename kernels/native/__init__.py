"""Runs of small operators fused into one pass over memory, compiled for the machine at hand; each with its torch definition.

On two CPU cores a training step of a small model is bound by memory passes, not by matrix products; these operators
bring a row into cache once and do everything that is to be done with it, forwards and backwards.
"""

from .build import bfloat16_units, keep_memory, library
from .front import gated_norm, gated_norm_torch, kda_front, kda_front_torch
from .glu import cross_entropy_rows, situ_glu_joint, swi_glu_joint
from .kda import delta_rule
from .mix import mix_norm, mix_norm_torch
from .muon import Block, MuonBlocks, adamw_step, add_scaled, momentum_step, native_newton_schulz, native_update
from .routed import Order, route, route_torch, routed_experts, routed_experts_torch
from .step import MANY, Trunk, few_rows

__all__ = [
    "MANY",
    "Block",
    "MuonBlocks",
    "Order",
    "Trunk",
    "adamw_step",
    "add_scaled",
    "bfloat16_units",
    "cross_entropy_rows",
    "delta_rule",
    "few_rows",
    "gated_norm",
    "gated_norm_torch",
    "kda_front",
    "kda_front_torch",
    "keep_memory",
    "library",
    "mix_norm",
    "mix_norm_torch",
    "momentum_step",
    "native_newton_schulz",
    "native_update",
    "route",
    "route_torch",
    "routed_experts",
    "routed_experts_torch",
    "situ_glu_joint",
    "swi_glu_joint",
]
