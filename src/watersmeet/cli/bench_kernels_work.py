"""What `watersmeet bench kernels` measures; every function returns plain numbers.

The forms of a comparison take turns, so that other load on the machine meets all of them; numbers are medians.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from watersmeet.cli.bench_peers import fla_function, peer_function, transformers_module

GATE_BOUND = -5.0
CHUNK = 16
"""Rows of a chunk of the native form; smaller chunks need fewer operations, so this one gives the lowest share."""

SLOW = 1.0
"""Seconds from which a call counts as slow."""

Work = Callable[[], Any]


def seconds(work: Work) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def medians(works: Mapping[str, Work], *, rounds: int, repeats: Mapping[str, int] | None = None) -> dict[str, float]:
    """Median seconds of every form after one call to warm up; ``repeats``: calls a round, else 1.

    A form that takes seconds runs three times in all and not in every round.
    """
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            if len(times[name]) >= 3 and min(times[name]) > SLOW:
                continue
            times[name] += [seconds(work) for _ in range((repeats or {}).get(name, 1))]
    return {name: statistics.median(values) for name, values in times.items()}


def kda_inputs(T: int, H: int, D: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v in ``dtype``; bounded log decays and beta in float32; last, a cotangent."""
    r = torch.Generator().manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn(1, T, H, D, generator=r), dim=-1).to(dtype) for _ in range(2))
    v, cotangent = (torch.randn(1, T, H, D, generator=r).to(dtype) for _ in range(2))
    g = GATE_BOUND * torch.sigmoid(torch.randn(1, T, H, D, generator=r) - 3)
    return [q, k, v, g, torch.sigmoid(torch.randn(1, T, H, generator=r)), cotangent]


def ours(*x: Tensor) -> Tensor:
    """The public operator."""
    from watersmeet.kernels import kda

    return kda(*x, gate_lower_bound=GATE_BOUND)[0]


def kda_forms() -> dict[str, Callable[..., Tensor]]:
    """Ours and the peers that are installed, under one signature."""
    forms: dict[str, Callable[..., Tensor]] = {"ours": ours}
    fallback, naive = peer_function(), fla_function()
    if fallback is not None:
        forms["transformers"] = lambda *x: fallback(*x, initial_state=None, output_final_state=False)[0]
    if naive is not None:
        forms["fla"] = lambda *x: naive(*x)[0]
    return forms


def forward_work(call: Callable[..., Tensor], inputs: list[Tensor]) -> Work:
    """One forward without a graph."""

    def work() -> Tensor:
        with torch.no_grad():
            return call(*inputs[:-1])

    return work


def both_work(call: Callable[..., Tensor], inputs: list[Tensor]) -> Work:
    """One forward and the gradients of all inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs[:-1]]
    return lambda: torch.autograd.grad(call(*leaves), leaves, inputs[-1])


def useful(T: int, H: int, D: int, C: int = CHUNK) -> float:
    """Operations of a forward that no chunked form of this chunk length can leave out, a multiply-add being one.

    Per token and head 6 D^2 / 2 for the state (read by keys, read by queries, written), 3 C D for the products in a chunk,
    C^2 for the solve: the formula 6 T D^2 + 3 T C D + T C^2 counts both halves of a multiply-add of the first term.
    """
    return H * (6.0 * T * D * D + 3.0 * T * C * D + T * C * C)


def matmul_work(dtype: torch.dtype, size: int) -> Work:
    """A square matrix product of this machine's library."""
    a, b = (torch.randn(size, size, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def measure_kda(T: int, H: int, D: int, dtype: torch.dtype, *, rounds: int, size: int = 1024) -> dict[str, Any]:
    """Medians in seconds, forward and forward+backward, and the rate of useful operations beside that of matmul."""
    inputs, forms, found = kda_inputs(T, H, D, dtype), kda_forms(), {}
    if dtype != torch.float32:
        forms = {"ours": ours}  # the peers compute in float32 whatever they are given
    product = {"matmul": matmul_work(dtype, size)}
    many = {"ours": 3, "matmul": 3}
    for what, make in (("forward", forward_work), ("both", both_work)):
        # the naive form of fla keeps all it computes and takes seconds: once a round is enough for it
        works = {name: make(form, inputs) for name, form in forms.items()}
        found[what] = medians(works | product, rounds=rounds, repeats=many)
    rate = 2.0 * size**3 / found["forward"]["matmul"]
    rate_both = 2.0 * size**3 / found["both"]["matmul"]
    work = useful(T, H, D)
    truth = forward_work(ours, [x.float() for x in inputs])()
    return found | {
        "matmul_gflops": rate / 1e9,
        "share_forward": work / found["forward"]["ours"] / rate,
        # the backward's useful work is counted as twice the forward's, as for every product of two matrices
        "share_both": 3 * work / found["both"]["ours"] / rate_both,
        "distance": {
            name: float((forward_work(form, inputs)().float() - truth).abs().max()) for name, form in forms.items()
        },
    }


def expert_layer(T: int, D: int, inner: int, experts: int, k: int) -> dict[str, tuple[Work, Work]]:
    """Forward and forward+backward of the same routed experts (SwiGLU, float32), ours and transformers'."""
    from watersmeet.kernels.native import routed_experts

    r = torch.Generator().manual_seed(0)
    x = torch.randn(T, D, generator=r)
    w13 = torch.randn(experts, 2 * inner, D, generator=r) * D**-0.5
    w2 = torch.randn(experts, D, inner, generator=r) * inner**-0.5
    picked = torch.rand(T, experts, generator=r).topk(k).indices
    share = torch.softmax(torch.randn(T, k, generator=r), -1)
    cotangent = torch.randn(T, D, generator=r)
    calls: dict[str, Callable[..., Tensor]] = {
        "ours": lambda x, s, a, b: routed_experts(x, s, picked, a, b, None, betas=None, eps=0.0)
    }
    module = transformers_module()
    if module is not None:
        from types import SimpleNamespace

        settings = SimpleNamespace(
            num_local_experts=experts, moe_intermediate_size=inner, hidden_size=D, hidden_act="silu",
            _experts_implementation="eager",
        )  # fmt: skip
        with torch.device("meta"):
            layer = module.KimiLinearExperts(settings)

        def theirs(x: Tensor, s: Tensor, a: Tensor, b: Tensor) -> Tensor:
            given = {"gate_up_proj": a, "down_proj": b}
            result: Tensor = torch.func.functional_call(layer, given, (x, picked, s))
            return result

        calls["transformers"] = theirs
    works: dict[str, tuple[Work, Work]] = {}
    for name, call in calls.items():
        leaves = [y.clone().requires_grad_() for y in (x, share, w13, w2)]

        def forward(call: Callable[..., Tensor] = call) -> Tensor:
            with torch.no_grad():
                return call(x, share, w13, w2)

        def both(call: Callable[..., Tensor] = call, leaves: list[Tensor] = leaves) -> Any:
            return torch.autograd.grad(call(*leaves), leaves, cotangent)

        works[name] = (forward, both)
    return works


def measure_experts(
    *, T: int = 4096, D: int = 512, inner: int = 256, experts: int = 64, k: int = 4, rounds: int
) -> dict[str, Any]:
    """Medians in seconds, the largest difference, and the time of the layer's bare products."""
    works = expert_layer(T, D, inner, experts, k)
    truth = works["ours"][0]()
    rows = T * k // experts
    a, b = torch.randn(rows, D), torch.randn(rows, inner)
    up, down = torch.randn(experts, 2 * inner, D), torch.randn(experts, D, inner)

    def products() -> None:
        for one, other in zip(up, down, strict=True):
            torch.mm(a, one.t())
            torch.mm(b, other.t())

    return {
        "forward": medians({n: w[0] for n, w in works.items()} | {"products": products}, rounds=rounds),
        "both": medians({n: w[1] for n, w in works.items()}, rounds=rounds),
        "distance": {n: float((w[0]() - truth).abs().max()) for n, w in works.items()},
    }


def measure_step(*, tokens: int = 64, rounds: int) -> dict[str, float]:
    """One decoding step of nano, and the products of its weights with one vector alone, by the step's own routine.

    The native step is one call, so its inside is measured from outside: all matrices that a token goes through, those of
    one width stacked into one, are multiplied by the routine that the step uses. The rest is everything else that a step
    does: norms, convolutions, the state of KDA, attention over the cache, the router, Python.
    """
    from watersmeet.core.model.fused import trunk_of
    from watersmeet.core.stream import Span, Stream, content_key, pack
    from watersmeet.kernels.native.step import MATRICES, few_rows
    from watersmeet.pipelines.models.local import load_local

    model = load_local("nano").model.eval()
    ids = torch.randint(3, model.config.vocab_size, (tokens,), generator=torch.Generator().manual_seed(0))
    modality = model.config.output_modality
    span = Span(modality=modality, data=ids, key=content_key(modality, ids))
    by_width: dict[int, list[Tensor]] = {}
    for values in _layers_of(model):
        for name in MATRICES:
            matrix = values.get(name)
            if isinstance(matrix, Tensor):
                matrix = matrix[: int(values["picks"])].flatten(0, 1) if matrix.dim() == 3 else matrix
                by_width.setdefault(matrix.shape[1], []).append(matrix.detach())
    by_width.setdefault(model.lm_head.weight.shape[1], []).append(model.lm_head.weight.detach())
    stacked = [(torch.randn(1, width), torch.cat(parts).contiguous()) for width, parts in by_width.items()]
    with torch.inference_mode(), model.fused():
        cache = model.new_cache(1)
        model.prefill(cache, pack([Stream(spans=(span,))], model.modality_names))

        def step() -> Tensor:
            return model.logits(model.step(model.embed_ids(ids[:1]), cache))

        def products() -> None:
            for x, matrix in stacked:
                few_rows(x, matrix)

        found = medians({"step": step, "products": products}, rounds=rounds, repeats={"step": 8, "products": 8})
    native = trunk_of(model) is not None
    return found | {
        "weights": float(sum(m.numel() for _, m in stacked)), "outside": 1 - found["products"] / found["step"],
        "native": float(native),
    }  # fmt: skip


def _layers_of(model: Any) -> list[Mapping[str, Any]]:
    from watersmeet.core.model.fused import _layer

    return [_layer(layer, index == 0, {}) for index, layer in enumerate(model.layers)]


def peak(form: str, T: int, H: int, D: int) -> int:
    """Bytes that one forward and backward of KDA need beyond inputs, libraries and gradients; for a process of its own."""
    forms = kda_forms()
    both_work(forms[form], kda_inputs(128, 1, D, torch.float32))()  # what is made once is made before counting
    inputs = kda_inputs(T, H, D, torch.float32)
    work = both_work(forms[form], inputs)
    filler = torch.ones(max(1, _peak() - _resident()) // 4 + 1)  # the peak is now what is in use
    floor = _peak()
    grads = work()
    grown = _peak() - floor
    del filler, grads
    return grown


def _resident() -> int:
    from pathlib import Path

    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward", "mkldnn_linear")  # fmt: skip
"""Operators of torch that are matrix products, attention's fused ones among them."""

KINDS = (
    ("KDA, native (chunks of products)", ("KDA",)),
    ("optimizer", ("MuonAdamW", "Optimizer")),
    ("routing, order and weighted sums of experts", ("Rout",)),
    ("residual mixes and norms", ("Mix", "Norm")),
    ("convolutions, gates and l2 norms before KDA", ("Front",)),
    ("GLU", ("Situ", "SwiGLU", "Glu")),
    ("loss", ("CrossEntropy", "Rows")),
)

OTHERS = "element by element in torch: sums of gradients, copies, casts, norms"


def training_step(*, tokens: int = 2048, streams: int = 4) -> Work:
    """One whole step of nano as `watersmeet train` takes it, on random ids: forward, backward, clipping, update."""
    from watersmeet.core.stream import Span, Stream, content_key, pack, supervise
    from watersmeet.core.training.config import config_from_dict
    from watersmeet.core.training.packing import Batch
    from watersmeet.core.training.trainer import Trainer
    from watersmeet.pipelines.models.local import load_local

    model = load_local("nano").model
    modality, length = model.config.output_modality, tokens // streams

    def stream(seed: int) -> Stream:
        ids = torch.randint(3, model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))
        return supervise([Span(modality=modality, data=ids, key=content_key(modality, ids))], [True])

    packed = pack([stream(i) for i in range(streams)], model.modality_names)
    batch = Batch(packed=packed, real_tokens=tokens, samples=(), cursor={})
    config = config_from_dict(
        {"dataset": "none:none", "batch": {"tokens": tokens}, "schedule": {"steps": 100, "warmup": 1}}
    )
    trainer = Trainer(model, config, [stream(0)], device="cpu", report=lambda _: None)  # type: ignore[arg-type]
    return partial(trainer._step, [batch])


def measure_training(*, tokens: int = 2048, rounds: int = 3) -> dict[str, Any]:
    """Seconds of a step, and the shares of its parts by torch's profiler: own time of every operator on the main threads.

    Time is summed over the thread of the forward and that of the backward, which never run at once.
    """
    work = training_step(tokens=tokens)
    work()
    taken = statistics.median(seconds(work) for _ in range(rounds))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        begin = time.perf_counter()
        for _ in range(rounds):
            work()
        whole = (time.perf_counter() - begin) * 1e6
    parts: dict[str, float] = {"matrix products of torch": 0.0}
    operators: dict[str, float] = {}
    for event in profile.key_averages():
        name = event.key.removeprefix("autograd::engine::evaluate_function: ")
        own = event.self_cpu_time_total
        if name.removeprefix("aten::") in PRODUCTS:
            kind = "matrix products of torch"
        else:
            kind = next((kind for kind, words in KINDS if any(word in name for word in words)), OTHERS)
        parts[kind] = parts.get(kind, 0.0) + own
        operators[name] = operators.get(name, 0.0) + own
    counted = sum(parts.values())
    parts["Python between operators"] = max(0.0, whole - counted)
    top = sorted(operators.items(), key=lambda item: -item[1])[:25]
    return {
        "seconds": taken, "tokens": tokens, "parts": {name: own / whole for name, own in parts.items()},
        "operators": {name: own / whole for name, own in top},
    }  # fmt: skip
