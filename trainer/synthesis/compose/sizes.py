"""Sizes by name, for a value of some kind and shape. All ranges are our own choice."""

from __future__ import annotations

import random
from collections.abc import Mapping

WIDTHS = (64, 96, 100, 127, 128, 160, 192, 255, 256, 320, 384, 500, 512, 640, 768, 1000, 1024, 1536)
LENGTHS = (16, 31, 32, 50, 64, 77, 128, 197, 256, 384)
CHANNELS = (3, 8, 12, 16, 24, 31, 32, 48, 64, 96, 128)
SIDES = (14, 15, 16, 28, 31, 32, 56, 64, 112, 128)
VOLUME_SIDES = (6, 8, 9, 12, 16)
LINES = (50, 64, 127, 128, 250, 256, 512, 1000, 1024)
TABLE_ROWS = (1000, 5000, 10007, 32000)
SMALL = (8, 16, 24, 32, 48)


def first_shape(kind: str, elements: int, rng: random.Random) -> tuple[int, ...]:
    """A shape of about so many elements; the first dimension takes what the others leave."""
    match kind:
        case "rows":
            rest = [rng.choice(WIDTHS)]
        case "tokens":
            rest = [rng.choice(LENGTHS), rng.choice(WIDTHS)]
        case "line":
            rest = [rng.choice(CHANNELS), rng.choice(LINES)]
        case "image":
            side = rng.choice(SIDES)
            rest = [rng.choice(CHANNELS), side, side + rng.choice((0, 0, 0, 3, 4))]
        case "volume":
            side = rng.choice(VOLUME_SIDES)
            rest = [rng.choice(CHANNELS[:8]), side, side, side + rng.choice((0, 0, 2))]
        case "indices":
            rest = [rng.choice(LENGTHS)]
        case _:
            raise ValueError(f"no kind {kind!r}")
    inner = 1
    for size in rest:
        inner *= size
    if kind == "indices":
        inner *= 128
    return (max(1, elements // inner), *rest)


def next_kind(kind: str, shape: tuple[int, ...]) -> str:
    """What a value is after an operator; "" where nothing follows it."""
    if len(shape) < 2 or min(shape) < 1:
        return ""
    if len(shape) == 3:
        return "line" if kind in ("line", "image") else "tokens"
    return {2: "rows", 4: "image", 5: "volume"}.get(len(shape), "")


def sizes(kind: str, shape: tuple[int, ...], rng: random.Random) -> Mapping[str, int]:
    """Every name that the table of operators uses."""
    channels = shape[1] if kind in ("line", "image", "volume") else shape[-1]
    kernel = rng.choice((1, 3, 3, 5))
    groups = rng.choice([n for n in (2, 3, 4, 8, 1) if channels % n == 0])
    heads = rng.choice([n for n in (4, 8, 2, 5, 1) if shape[-1] % n == 0])
    wide = WIDTHS if kind in ("rows", "tokens", "indices") else CHANNELS[1:]
    return {
        "B": shape[0],
        "first": shape[0],
        "T": shape[1],
        "D": shape[-1],
        "C": channels,
        "O": rng.choice(wide),
        "small": rng.choice(SMALL),
        "k": kernel,
        "p": kernel // 2,
        "G": groups,
        "heads": heads,
        "V": rng.choice(TABLE_ROWS),
        "rank": len(shape),
    }
