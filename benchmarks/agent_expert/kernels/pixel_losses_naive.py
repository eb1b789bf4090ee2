"""Cross entropy of pixels with class weights, and its mean for each image: classes twice, one after the other."""

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
    BLOCK: tl.constexpr,
):
    tile, image = tl.program_id(0), tl.program_id(1)
    place = tile * BLOCK + tl.arange(0, BLOCK)
    there = place < PIXELS
    target = tl.load(targets + image * PIXELS + place, mask=there, other=-100)
    counts = target != -100  # the index that is to be ignored
    target = tl.where(counts, target, 0)
    column = logits + image * (CLASSES * PIXELS) + place
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for c in range(CLASSES):
        largest = tl.maximum(largest, tl.load(column + c * PIXELS, mask=there, other=0.0))
    total = tl.zeros((BLOCK,), tl.float32)
    for c in range(CLASSES):
        total += tl.exp(tl.load(column + c * PIXELS, mask=there, other=0.0) - largest)
    chosen = tl.load(column + target * PIXELS, mask=there, other=0.0)
    weight = tl.load(weights + target)
    loss = -((chosen - largest - tl.log(total)) * weight)
    tl.store(partial + image * tl.num_programs(0) + tile, tl.sum(tl.where(counts, loss, 0.0), 0))


@triton.jit
def means(partial, out, PIXELS: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr):
    image = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    parts = tl.load(partial + image * TILES + place, mask=place < TILES, other=0.0)
    tl.store(out + image, tl.sum(parts, 0) / PIXELS)
