"""The schedules of a GEMM that are worth trying on a device, best guess first.

`ranked_schedules` serves a plain GEMM and each epilogue: it takes the tiles of `candidates`, in the variants that may
pay (copied operands, terms left out, a split tail wave, TF32), drops those that cannot be written, and sorts the rest
by `estimate`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cuda_agent_backend.codegen.analysis.gemm import GemmForm
from cuda_agent_backend.codegen.cuda.gemm.aligned_operands import (
    aligned_sides,
    aligning_pays,
    sides_of,
)
from cuda_agent_backend.codegen.cuda.gemm.banded import banded_operands_of, leaving_out_pays
from cuda_agent_backend.codegen.cuda.gemm.candidates import (
    candidates,
)
from cuda_agent_backend.codegen.cuda.gemm.estimate import (
    HALF_JOIN_COST,
    HALF_LAUNCH,
    JOIN_COST,
    LAUNCH,
    seconds_of,
    waves_of,
)
from cuda_agent_backend.codegen.cuda.gemm.facts import MAX_BATCHES
from cuda_agent_backend.codegen.cuda.gemm.tail_split import writer_of
from cuda_agent_backend.codegen.cuda.gemm.tail_wave import best_tail_wave
from cuda_agent_backend.codegen.cuda.gemm.tiles import (
    Tiles,
)
from cuda_agent_backend.codegen.cuda.gemm.writer import SKETCH, GemmWriter
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter

TF32_RUNS = (128, 64, 32)
"""Terms after which sums of warp groups move on where one TF32 product is right (see `candidates.WGMMA_RUNS`)."""
WASTE = 1.12
"""What may be added in zeros, as the terms are no multiple of a run, before a shorter run is taken."""


def gemm_schedules(
    kernel: Kernel, gemm: GemmForm, region: LoweredRegion, device: DeviceFacts, most: int
) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules that fit, none where the device does not take so many batches."""

    def writer(tiles: Tiles) -> GemmWriter:
        return writer_of(kernel, gemm, region, tiles, "k", device)

    return ranked_schedules(SKETCH, gemm, region, device, most, writer)


def ranked_schedules(
    sketch: str,
    c: GemmForm,
    region: LoweredRegion,
    device: DeviceFacts,
    most: int,
    writer_of: Callable[[Tiles], GemmWriter],
    more: Sequence[tuple[Tiles, float]] = (),
) -> list[dict[str, Parameter]]:
    """Up to ``most`` schedules of the family ``sketch``, best guess first.

    writer_of: the writer of a GEMM with such tiles; raises Unsupported where it cannot be written.
    more: tiles that are not for every GEMM, with their shares.
    """
    if c.batches > MAX_BATCHES:
        return []
    best = _with_tf32(_ranked(c, region, device, writer_of, more), c, device, most, writer_of)
    return [_parameters(tiles, sketch) for tiles in best]


def _ranked(
    c: GemmForm,
    region: LoweredRegion,
    device: DeviceFacts,
    writer_of: Callable[[Tiles], GemmWriter],
    more: Sequence[tuple[Tiles, float]],
) -> list[Tiles]:
    """All that fit, best guess first."""
    best: list[Tiles] = []
    for way in _all_ways(c, region, device, more):
        best = _by_turns(_best(c, device, writer_of, way), best)
    return best


def _with_tf32(
    best: list[Tiles],
    c: GemmForm,
    device: DeviceFacts,
    most: int,
    writer_of: Callable[[Tiles], GemmWriter],
) -> list[Tiles]:
    """Up to ``most``. Where TF32 is allowed two in it come before each exact one: eager mostly uses it, but only the
    judge knows."""
    if not device.tf32 or c.is_half:
        return best[:most]
    fast = iter(_in_tf32(best[:most], c.k))
    mixed = dict.fromkeys(t for exact in best[:most] for t in (*itertools.islice(fast, 2), exact))
    return [t for t in mixed if not t.last_wave or _fits(t, writer_of)][:most]


def _fits(tiles: Tiles, writer_of: Callable[[Tiles], GemmWriter]) -> bool:
    """Whether such a product can be written."""
    try:
        writer_of(tiles)
    except Unsupported:
        return False
    return True


def _all_ways(
    c: GemmForm,
    region: LoweredRegion,
    device: DeviceFacts,
    more: Sequence[tuple[Tiles, float]],
) -> list[list[tuple[Tiles, float]]]:
    """Tiles as they are, with copies of operands, with terms left out, as far as each pays: the likeliest last."""
    sides, copies = sides_of(c), aligned_sides(c, region, "k")
    ways = [[*candidates(c, sides, device), *more]]
    if aligning_pays(c, copies):
        by_name = {one.side.name: one.side for one in copies}
        sides = by_name.get("a", sides[0]), by_name.get("b", sides[1])
        found = (*candidates(c, sides, device), *more)
        ways.append([(replace(tiles, aligned=1), share) for tiles, share in found])
    bands = banded_operands_of(c, region)
    if bands is not None and leaving_out_pays(c, bands):
        ways.append([(replace(tiles, banded=1), share) for tiles, share in ways[-1]])
    return ways


def _best(
    gemm: GemmForm,
    device: DeviceFacts,
    writer_of: Callable[[Tiles], GemmWriter],
    possible: Iterable[tuple[Tiles, float]],
) -> list[Tiles]:
    """Those that fit, by the estimate."""
    scored: list[tuple[float, int, Tiles]] = []
    for number, (tiles, share) in enumerate(possible):
        try:
            writer = writer_of(tiles)
            tiles.check(writer.shared_bytes, device, gemm.is_half)
        except Unsupported:
            continue
        seconds = writer.share * seconds_of(gemm, tiles, share, device)
        scored.append((seconds, number, tiles))
        shared = _with_tail_split(writer, seconds, device)
        if shared is not None and shared[0] < seconds and _fits(shared[1], writer_of):
            scored.append((shared[0], number, shared[1]))
    scored.sort(key=lambda item: item[:2])
    return [tiles for *_, tiles in scored]


def _with_tail_split(
    plain: GemmWriter, seconds: float, device: DeviceFacts
) -> tuple[float, Tiles] | None:
    """The schedule of ``plain``, which takes ``seconds``, with its last wave shared, and what that takes.

    None where there is no such wave, and for tiles of which blocks wait for memory.
    """
    c, t, (high, wide) = plain.gemm, plain.tiles, plain.grid
    if t.split > 1 or t.warps_k > 1:
        return None
    tiles = c.batches * high * wide
    join, launch = (HALF_JOIN_COST, HALF_LAUNCH) if c.is_half else (JOIN_COST, LAUNCH)
    try:
        wave = best_tail_wave(t, plain.shared_bytes, tiles, c.k, device, join)
    except Unsupported:
        return None
    waves = wave.waves(device, join) / waves_of(tiles / device.sm_count)
    return seconds * waves + launch, replace(t, last_wave=wave.parts)


def _by_turns(likely: list[Tiles], plain: list[Tiles]) -> list[Tiles]:
    """As whether copying, or leaving terms out, pays is an estimate: one with it, one without, another with."""
    turns = itertools.zip_longest(likely[::2], plain, likely[1::2])
    return [one for turn in turns for one in turn if one is not None]


def _in_tf32(tiles: list[Tiles], k: int) -> list[Tiles]:
    """Eager's sums do not move on then, so ours need not."""
    whole = [run for run in TF32_RUNS if ceildiv(k, run) * run <= WASTE * k]
    run = whole[0] if whole else TF32_RUNS[-1]
    return [replace(t, products=1, run=run if t.is_wgmma else 0) for t in tiles]


def _parameters(t: Tiles, sketch: str) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {
        "sketch": sketch, "tile_m": t.tile_m, "tile_n": t.tile_n, "depth": t.depth, "warp_m": t.warp_m,
        "warp_n": t.warp_n, "stages": t.stages, "run": t.run, "split": t.split,
        "products": t.products, "group": int(t.group), "warps_k": t.warps_k,
    }  # fmt: skip
    rare = ("aligned", "banded", "last_wave")
    return found | {name: value for name in rare if (value := getattr(t, name))}
