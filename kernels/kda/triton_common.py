# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What the Triton kernels of KDA share: loads of chunk rows, products in the operand type, decays inside a chunk.

A chunk is C rows of one sequence. ``table`` has one int32 pair a chunk: its first row in the flattened stream and how
many rows it has (0 for an entry that is not used). Tensors keep the layout of the stream, [rows, H, D].
"""

import triton
import triton.language as tl


@triton.jit
def load_rows(x, base, i, n, col, stride, WIDTH: tl.constexpr):
    """float32 tile [rows, columns]; 0 outside of the chunk and of the width."""
    mask = (i < n)[:, None] & (col < WIDTH)[None, :]
    return tl.load(x + base + i[:, None] * stride + col[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_operand(x, base, i, n, col, stride, WIDTH: tl.constexpr):
    """The same in the type in which it is stored, for a product."""
    mask = (i < n)[:, None] & (col < WIDTH)[None, :]
    return tl.load(x + base + i[:, None] * stride + col[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(x, base, i, n, col, stride, WIDTH: tl.constexpr, value):
    mask = (i < n)[:, None] & (col < WIDTH)[None, :]
    tl.store(x + base + i[:, None] * stride + col[None, :], value.to(x.dtype.element_ty), mask=mask)


@triton.jit
def product(a, b, OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr):
    """a @ b with both rounded to OPERAND and float32 sums. EMULATE: Triton's interpreter cannot multiply bfloat16."""
    a, b = a.to(OPERAND), b.to(OPERAND)
    if EMULATE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def pairs(row, col, size):
    """Where the row is in the odd and the column in the even one of a pair of blocks of ``size``, a power of two."""
    return (((row ^ col) & -size) == size) & ((row & size) != 0)


@triton.jit
def double(rise, fall, whole, row, size):
    """Decays of blocks of ``2 size`` rows from those of ``size`` rows.

    rise: from the start of its block through a row. fall: from after a row to the end of its block. whole: of the block.
    """
    other = tl.gather(whole, tl.broadcast_to(row ^ size, whole.shape), 0)
    odd = (row & size) != 0
    return tl.where(odd, rise * other, rise), tl.where(odd, fall, fall * other), whole * other
