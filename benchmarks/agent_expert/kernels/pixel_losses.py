"""Cross entropy of pixels with class weights, and its mean for each image: all classes of a tile in registers.

Sixteen classes and the rest are two tiles, for tiles have powers of two of rows and nineteen would fill 32 badly.
"""

import triton
import triton.language as tl


@triton.jit
def losses(
    targets,
    logits,
    weights,
    partial,
    PIXELS: tl.constexpr,
    CLASSES: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile, image = tl.program_id(0), tl.program_id(1)
    place = tile * BLOCK + tl.arange(0, BLOCK)
    there = place < PIXELS
    column = logits + image * (CLASSES * PIXELS) + place
    low, high = tl.arange(0, FIRST), FIRST + tl.arange(0, REST)
    inside = (high < CLASSES)[:, None] & there[None, :]
    a = tl.load(column[None, :] + low[:, None] * PIXELS, mask=there[None, :], other=0.0)
    b = tl.load(column[None, :] + high[:, None] * PIXELS, mask=inside, other=float("-inf"))
    target = tl.load(targets + image * PIXELS + place, mask=there, other=-100)
    counts = target != -100  # the index that is to be ignored
    target = tl.where(counts, target, 0).to(tl.int32)
    weight = tl.load(weights + target)
    largest = tl.maximum(tl.max(a, 0), tl.max(b, 0))
    total = tl.sum(tl.exp(a - largest[None, :]), 0) + tl.sum(tl.exp(b - largest[None, :]), 0)
    chosen = tl.sum(tl.where(low[:, None] == target[None, :], a, 0.0), 0)
    chosen += tl.sum(tl.where(high[:, None] == target[None, :], b, 0.0), 0)
    loss = -((chosen - largest - tl.log(total)) * weight)
    loss = tl.where(counts, loss, 0.0)
    tl.store(partial + image * tl.num_programs(0) + tile, tl.sum(loss, 0))


@triton.jit
def means(partial, out, PIXELS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr):
    image = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    parts = tl.load(partial + image * TILES + place, mask=place < TILES, other=0.0)
    tl.store(out + image, tl.sum(parts, 0) / PIXELS)
