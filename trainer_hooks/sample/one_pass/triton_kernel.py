"""The kernels in Triton: a tile is a run of at most TILE elements of one piece, its address an int64 in a table.

The maximum is taken over the bits, as native.c explains, and follows the sum of roots into nan. Sums: a lane adds at
most eight roots in float32 (a relative error below 3e-7), everything else is added in float64, in an order that is
always the same.
"""

import torch
import triton
import triton.language as tl

BLOCK = 2048
TILE = 8 * BLOCK
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _part(address, start, n, dtype: tl.constexpr, aligned: tl.constexpr, whole: tl.constexpr, block: tl.constexpr):
    """block elements from start on, as float32; 0 behind the end."""
    pointer = address.to(tl.pointer_type(dtype))
    if aligned:
        pointer = tl.multiple_of(pointer, 16)
    at = start + tl.arange(0, block)
    if whole:
        return tl.load(pointer + at).to(tl.float32)
    return tl.load(pointer + at, mask=at < n, other=0.0).to(tl.float32)


@triton.jit
def _reduce(
    v_at, m_at, p_at, n, parts, tiles, tile,
    momentum_scale, root_scale, eps, decay,
    v_type: tl.constexpr, m_type: tl.constexpr, p_type: tl.constexpr,
    aligned: tl.constexpr, whole: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One tile; m_type and p_type are None where the tile has none or they are not wanted."""
    roots = tl.zeros([block], tl.float32)
    tops = tl.zeros([block], tl.int32)
    mm = tl.zeros([block], tl.float64)
    uu = tl.zeros([block], tl.float64)
    pp = tl.zeros([block], tl.float64)
    for start in range(0, size, block):
        v = _part(v_at, start, n, v_type, aligned, whole, block)
        root = tl.sqrt_rn(v)
        roots += root
        tops = tl.maximum(tops, v.to(tl.int32, bitcast=True))
        update = tl.zeros([block], tl.float32)
        if m_type is not None:
            m = _part(m_at, start, n, m_type, aligned, whole, block)
            wide = m.to(tl.float64)
            mm += wide * wide
            divisor = root * root_scale + eps
            if not whole:  # without an eps, 0 / 0
                divisor = tl.where(start + tl.arange(0, block) < n, divisor, 1.0)
            update = m * momentum_scale / divisor
        if p_type is not None:
            p = _part(p_at, start, n, p_type, aligned, whole, block)
            wide = p.to(tl.float64)
            pp += wide * wide
            update += p * decay
        if m_type is not None:
            wide = update.to(tl.float64)
            uu += wide * wide
    tl.store(parts + tile, tl.sum(roots.to(tl.float64)))
    tl.store(parts + tiles + tile, tl.max(tops).to(tl.float32, bitcast=True).to(tl.float64))
    if m_type is not None:
        tl.store(parts + 2 * tiles + tile, tl.sum(mm))
        tl.store(parts + 3 * tiles + tile, tl.sum(uu))
    if p_type is not None:
        tl.store(parts + 4 * tiles + tile, tl.sum(pp))


@triton.jit(do_not_specialize=["first", "tiles"])
def per_tile(
    table, parts, first, tiles,
    momentum_scale, root_scale, eps, decay,
    v_type: tl.constexpr, m_type: tl.constexpr, p_type: tl.constexpr,
    aligned: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """parts (5, tiles) float64 of the tiles from first on; table (4, tiles): addresses of v, m, p, and lengths."""
    tile = first + tl.program_id(0)
    v_at = tl.load(table + tile)
    m_at = tl.load(table + tiles + tile)
    p_at = tl.load(table + 2 * tiles + tile)
    n = tl.load(table + 3 * tiles + tile)
    if n == size:
        _reduce(
            v_at, m_at, p_at, n, parts, tiles, tile, momentum_scale, root_scale, eps, decay,
            v_type, m_type, p_type, aligned, True, size, block,
        )  # fmt: skip
    else:
        _reduce(
            v_at, m_at, p_at, n, parts, tiles, tile, momentum_scale, root_scale, eps, decay,
            v_type, m_type, p_type, aligned, False, size, block,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tiles", "pieces"])
def per_piece(parts, ends, out, tiles, pieces, rows: tl.constexpr, block: tl.constexpr):
    """out (rows, pieces) from parts; ends (2, pieces): first tile of each piece, and the first that is not its."""
    piece = tl.program_id(0)
    first = tl.load(ends + piece)
    end = tl.load(ends + pieces + piece)
    roots = tl.zeros([block], tl.float64)
    tops = tl.zeros([block], tl.float64)
    for start in range(first, end, block):
        at = start + tl.arange(0, block)
        roots += tl.load(parts + at, mask=at < end, other=0.0)
        tops = tl.maximum(tops, tl.load(parts + tiles + at, mask=at < end, other=0.0))
    total = tl.sum(roots)
    largest = tl.max(tops)
    tl.store(out + piece, total)
    tl.store(out + pieces + piece, tl.where(total == total, largest, total))
    for row in tl.static_range(2, rows):
        sums = tl.zeros([block], tl.float64)
        for start in range(first, end, block):
            at = start + tl.arange(0, block)
            sums += tl.load(parts + row * tiles + at, mask=at < end, other=0.0)
        tl.store(out + row * pieces + piece, tl.sum(sums))
