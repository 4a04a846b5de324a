"""The short convolution in torch: blocks of rows that fit a cache, one multiply-add a tap, no copies of the whole input.

Legend: B batch, T tokens, C channels, W taps, N sequences, R = B * T rows of all sequences laid end to end, S = W - 1
tokens of a window, M picked rows.

A block of rows is computed as if no sequence began in it. The few rows that reach across a boundary (the heads, with
fewer than S tokens before them in their sequence) are computed from windows that are gathered one by one, so that nothing
crosses, not even a NaN. Backwards the same holds for tails, the last S rows of a sequence.
"""

from bisect import bisect_left

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 1 << 18
"""Numbers in a block of rows: about a megabyte in float32."""


class _Rows:
    """Picked rows of sequences: ``n`` (sequence), ``age`` (index in it) and ``row``, all [M], in the order of rows."""

    def __init__(self, first_N: Tensor, age_NS: Tensor, real_NS: Tensor, taps: int) -> None:
        self.n, place = real_NS.nonzero(as_tuple=True)
        self.age = age_NS[self.n, place]
        self.row = first_N[self.n] + self.age
        # tap w sees this token of the sequence; a negative one is in the state
        self.own_MW = self.age[:, None] + torch.arange(1 - taps, 1, device=first_N.device)
        self.begin = first_N[self.n]

    def windows(self, x_RC: Tensor, state_NCS: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What every tap multiplies, [M,W,C]."""
        seen = x_RC[self.begin[:, None] + self.own_MW.clamp(min=0)].to(dtype)
        inside = (self.own_MW >= 0)[..., None]
        if state_NCS is None or state_NCS.shape[2] == 0:
            return torch.where(inside, seen, 0.0)
        S = state_NCS.shape[2]
        before = state_NCS.transpose(1, 2)[self.n[:, None], (self.own_MW + S).clamp(max=S - 1)].to(dtype)
        return torch.where(inside, seen, before)


class _Layout:
    """Where sequences begin and end, and which rows are heads and tails."""

    def __init__(self, x: Tensor, cu_seqlens: Tensor | None, taps: int) -> None:
        B, T, _ = x.shape
        if cu_seqlens is None:
            self.first_N, self.length_N = torch.arange(B, device=x.device) * T, torch.full((B,), T, device=x.device)
        else:
            bounds = cu_seqlens.to(x.device, torch.int64)
            self.first_N, self.length_N = bounds[:-1], bounds.diff()
        self.taps, self.place_S = taps, torch.arange(taps - 1, device=x.device)

    def heads(self) -> _Rows:
        length_N1 = self.length_N[:, None]
        return _Rows(self.first_N, self.place_S.expand(len(length_N1), -1), self.place_S < length_N1, self.taps)

    def last_tokens(self) -> Tensor:
        """[N,S] index in the sequence of what the final window holds; negative where the old window still reaches."""
        return self.length_N[:, None] - (self.taps - 1) + self.place_S

    def tails(self) -> _Rows:
        return _Rows(self.first_N, self.last_tokens(), self.last_tokens() >= 0, self.taps)

    def last_window(self, x_RC: Tensor, state_NCS: Tensor | None) -> Tensor:
        """The last S raw inputs of every sequence, [N,C,S]."""
        own_NS, S = self.last_tokens(), self.taps - 1
        final_NSC = x_RC.new_zeros(*own_NS.shape, x_RC.shape[1])
        if state_NCS is not None and S:
            n = torch.arange(len(own_NS), device=x_RC.device)[:, None]
            final_NSC = state_NCS.transpose(1, 2)[n, (own_NS + S).clamp(max=S - 1)].to(x_RC.dtype)
        real = own_NS >= 0
        final_NSC[real] = x_RC[(self.first_N[:, None] + own_NS)[real]]
        return final_NSC.transpose(1, 2).contiguous()


def _block_rows(C: int) -> int:
    return max(64, BLOCK // max(C, 1))


def _block_sum(x_RC: Tensor, w_WC: Tensor, start: int, stop: int) -> Tensor:
    """Rows [start, stop) of the sum over taps, boundaries not seen."""
    W, low = len(w_WC), max(0, start - len(w_WC) + 1)
    x = x_RC[low:stop].to(w_WC.dtype)
    y = x[start - low :] * w_WC[-1]
    for shift in range(1, W):
        skip = max(0, shift - start)  # rows that have no row so far above
        if skip < stop - start:
            y[skip:].addcmul_(x[start - low + skip - shift : stop - low - shift], w_WC[W - 1 - shift])
    return y


def _window_sum(seen_MWC: Tensor, w_WC: Tensor) -> Tensor:
    """The same sum for gathered windows, in the same order."""
    y = seen_MWC[:, -1] * w_WC[-1]
    for w in range(len(w_WC) - 2, -1, -1):
        y.addcmul_(seen_MWC[:, w], w_WC[w])
    return y


def _through_silu(dy: Tensor, before: Tensor) -> Tensor:
    s = torch.sigmoid(before)
    return dy * (s * (1 + before * (1 - s)))


def conv_forward(
    x: Tensor, weight: Tensor, cu_seqlens: Tensor | None, state: Tensor | None, need_final: bool, activation: bool
) -> tuple[Tensor, Tensor | None]:
    """Arguments and results as in ``watersmeet.kernels.short_conv``; x [B,T,C] contiguous."""
    C, W = weight.shape
    dtype = torch.promote_types(torch.float32, x.dtype)
    w_WC, x_RC, y = weight.to(dtype).t().contiguous(), x.view(-1, C), torch.empty_like(x)
    layout, y_RC = _Layout(x, cu_seqlens, W), y.view(-1, C)
    for start in range(0, len(x_RC), _block_rows(C)):
        stop = min(start + _block_rows(C), len(x_RC))
        block = _block_sum(x_RC, w_WC, start, stop)
        y_RC[start:stop] = F.silu(block, inplace=True) if activation else block
    heads = layout.heads()
    rows = _window_sum(heads.windows(x_RC, state, dtype), w_WC)
    y_RC.index_copy_(0, heads.row, (F.silu(rows) if activation else rows).to(y.dtype))
    return y, layout.last_window(x_RC, state) if need_final else None


def conv_backward(
    dy: Tensor,
    dfinal: Tensor | None,
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor | None,
    state: Tensor | None,
    activation: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of x, weight and the state (None without one), each in its dtype. Sums before the activation are redone."""
    C, W = weight.shape
    dtype = torch.promote_types(torch.float32, x.dtype)
    w_WC, x_RC, dy_RC = weight.to(dtype).t().contiguous(), x.view(-1, C), dy.reshape(-1, C)
    layout, dx = _Layout(x, cu_seqlens, W), torch.empty_like(x)
    dx_RC, dw_WC = dx.view(-1, C), torch.zeros_like(w_WC)

    def of_rows(rows: _Rows) -> tuple[Tensor, Tensor]:
        """Gradient before the activation [M,C], and the windows."""
        seen_MWC = rows.windows(x_RC, state, dtype)
        d_MC = dy_RC[rows.row].to(dtype)
        return _through_silu(d_MC, _window_sum(seen_MWC, w_WC)) if activation else d_MC, seen_MWC

    heads = layout.heads()
    d_head_MC, seen_MWC = of_rows(heads)
    head_rows = heads.row.tolist()
    for start in range(0, len(x_RC), _block_rows(C)):
        stop = min(start + _block_rows(C), len(x_RC))
        high = min(stop + W - 1, len(x_RC))  # rows that read this block
        d = dy_RC[start:high].to(dtype, copy=True)
        if activation:
            d = _through_silu(d, _block_sum(x_RC, w_WC, start, high))
        a, b = bisect_left(head_rows, start), bisect_left(head_rows, high)
        d[heads.row[a:b] - start] = d_head_MC[a:b]
        block = d[: stop - start] * w_WC[-1]
        for shift in range(1, W):
            part = d[shift : shift + stop - start]
            block[: len(part)].addcmul_(part, w_WC[W - 1 - shift])
        dx_RC[start:stop] = block
        d[heads.row[a:b] - start] = 0  # what heads see is not what stands above them
        low = max(0, start - W + 1)
        x_near = x_RC[low:stop].to(dtype)
        for shift in range(W):
            skip = max(0, shift - start)
            if skip < stop - start:
                seen = x_near[start - low + skip - shift : stop - low - shift]
                dw_WC[W - 1 - shift] += (d[skip : stop - start] * seen).sum(0)
    dw_WC += torch.einsum("mc,mwc->wc", d_head_MC, seen_MWC)
    # rows whose readers would be in the next sequence
    tails = layout.tails()
    d_tail_MC, _ = of_rows(tails)
    total = d_tail_MC * w_WC[-1]
    for shift in range(1, W):
        same = (tails.n[shift:] == tails.n[:-shift])[:, None]
        total[:-shift].addcmul_(torch.where(same, d_tail_MC[shift:], 0.0), w_WC[W - 1 - shift].expand(len(same), -1))
    own_NS = layout.last_tokens()
    if dfinal is not None:
        total += dfinal.transpose(1, 2)[own_NS >= 0].to(dtype)
    dx_RC.index_copy_(0, tails.row, total.to(dx.dtype))
    dstate = None
    if state is not None:
        S = W - 1
        d_NSC = torch.zeros(len(own_NS), S, C, dtype=dtype, device=x.device)
        m, w = (heads.own_MW < 0).nonzero(as_tuple=True)
        d_NSC.index_put_((heads.n[m], heads.own_MW[m, w] + S), d_head_MC[m] * w_WC[w], accumulate=True)
        if dfinal is not None:
            n, j = (own_NS < 0).nonzero(as_tuple=True)
            d_NSC.index_put_((n, own_NS[n, j] + S), dfinal.transpose(1, 2)[n, j].to(dtype), accumulate=True)
        dstate = d_NSC.transpose(1, 2).to(state.dtype).contiguous()
    return dx, dw_WC.t().to(weight.dtype).contiguous(), dstate
