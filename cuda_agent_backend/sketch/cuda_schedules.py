"""Which schedules of a kernel are worth trying on a device, best guess first.

An estimate, not a model: bytes in flight on a multiprocessor against what it takes to keep memory busy, blocks that
can take turns (one loads while another reduces), work lost to uneven sizes, and the cost of meeting in a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent_backend.sketch.cuda_layout import WARP, DeviceFacts, Layout, ceildiv
from cuda_agent_backend.sketch.cuda_map import map_dims, single_pass
from cuda_agent_backend.sketch.cuda_parts import needs_wide
from cuda_agent_backend.sketch.cuda_rows import RowProgram, emit_rows, is_full, row_points
from cuda_agent_backend.sketch.lower import LoweredRegion
from cuda_agent_backend.sketch.nest import Kernel, coefficient
from cuda_agent_backend.sketch.schedule import Parameter
from cuda_agent_backend.sketch.ssa import Unsupported

Parameters = dict[str, Parameter]

REGISTERS, WARP_SLOTS, SHARED_BYTES = 65536, 64, 224 << 10
BASE_REGISTERS = 26
"""Registers of a thread beside the elements it keeps."""
WANTED_IN_FLIGHT = 56 << 10
"""Bytes that loads of one multiprocessor should have under way (latency times its share of the bandwidth)."""
MOST = 14


def kernel_schedules(
    kernel: Kernel, region: LoweredRegion, device: DeviceFacts, most: int = MOST
) -> list[Parameters]:
    """One to ``most`` schedules; raises Unsupported where no sketch fits."""
    if single_pass(kernel) is not None:
        return _map_schedules(kernel, region)[:most]
    found = _row_schedules(kernel, region, device, most)
    if not found:
        raise Unsupported("no schedule fits the rows of this kernel")
    return found


# --- pointwise ----------------------------------------------------------------------------------------------------


def _map_schedules(kernel: Kernel, region: LoweredRegion) -> list[Parameters]:
    p = single_pass(kernel)
    assert p is not None
    dims = map_dims(kernel, p)
    size = dims[-1][1] if dims else 1
    item = _item_bytes(kernel, region)
    vectors = [v for v in (16 // item, 8 // item, 1) if v >= 1 and size % v == 0]
    vectors = sorted(set(vectors), reverse=True)
    result: list[Parameters] = []
    for vector in vectors:
        for unroll, threads, blocks, stream in (
            (1, 256, 0, 0), (2, 256, 0, 0), (1, 256, 0, 1), (2, 256, 0, 1), (4, 256, 0, 0), (1, 512, 0, 0),
            (1, 1024, 0, 0), (2, 512, 4, 0), (4, 256, 8, 1),
        ):  # fmt: skip
            result.append({"sketch": "map", "vector": vector, "unroll": unroll, "threads": threads,
                           "blocks": blocks, "stream": stream})  # fmt: skip
    return result


def _item_bytes(kernel: Kernel, region: LoweredRegion) -> int:
    """Bytes of the widest element in the largest buffers: they set the vector width."""
    names = {i.buffer for s in kernel.stages for i in s.body.loads()} | {
        s.buffer for st in kernel.stages for s in st.stores
    }
    buffers = [region.buffers[n] for n in names if n is not None]
    most = max((b.extent for b in buffers), default=1)
    return max((b.dtype.itemsize for b in buffers if b.extent * 2 > most), default=4)


# --- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Facts:
    """What the estimate needs to know of a kernel's rows."""

    points: int
    rows: int
    columns: int
    item: int
    arrays: int
    passes: int
    reductions: int
    scans: bool
    writes: bool
    line: int
    inner: bool
    outer: bool
    wide: bool


def _facts(kernel: Kernel, region: LoweredRegion) -> _Facts:
    points = row_points(kernel)
    scans = any(s.kind == "scan" for s in kernel.stages)
    program = RowProgram.of(kernel, Layout(points, kernel.rows, ordered=scans), region)
    full = [p for p in program.passes if is_full(p, points)]
    inner = outer = 0
    for stage in (s for p in full for s in p.stages):
        for i in stage.body.loads():
            assert i.index is not None
            inner += abs(coefficient(i.index, stage.inner[-1][0]) or 0) == 1
            outer += bool(kernel.outer) and coefficient(i.index, kernel.outer[-1][0]) == 1
    writes = any(s.stores for p in full for s in p.stages if s.kind != "reduce")
    return _Facts(
        points, kernel.rows, kernel.outer[-1][1] if kernel.outer else 1, _item_bytes(kernel, region),
        max(len(program.kept), len(program.own)), len(full), sum(p.kind == "reduce" for p in full), scans,
        writes, math.gcd(*(p.inner[-1][1] for p in full)) if full else 1,
        inner >= outer, outer > inner, needs_wide(region, kernel),
    )  # fmt: skip


def _row_schedules(
    kernel: Kernel, region: LoweredRegion, device: DeviceFacts, most: int
) -> list[Parameters]:
    facts = _facts(kernel, region)
    scored: list[tuple[float, int, Parameters]] = []
    for parameters in _candidates(facts):
        layout = Layout(
            facts.points, facts.rows, ordered=facts.scans, wide=facts.wide, **parameters
        )  # type: ignore[arg-type]
        try:
            layout.check(device)
        except Unsupported:
            continue
        score = _score(layout, facts, device)
        if score > 0:
            scored.append((-score, len(scored), {"sketch": "row", **parameters}))
    ordered = (p for *_, p in sorted(scored, key=lambda item: item[:2]))
    chosen = _diverse((p for p in ordered if _fits(kernel, region, p, device)), most)
    if facts.writes:
        chosen[2:2] = [{**p, "stream": 1} for p in chosen[:2]]
    return chosen[:most]


def _fits(
    kernel: Kernel, region: LoweredRegion, parameters: Parameters, device: DeviceFacts
) -> bool:
    try:
        emit_rows(kernel, region, parameters, "k", device)
    except Unsupported:
        return False
    return True


def _diverse(ordered: Iterator[Parameters], most: int) -> list[Parameters]:
    """The best few of every way to keep and to meet, in order of the estimate."""
    counts: dict[tuple[object, ...], int] = {}
    chosen = []
    for p in ordered:
        way = (p.get("keep"), p.get("exchange", "block"), p.get("stages", 1) == 1)
        counts[way] = counts.get(way, 0) + 1
        if counts[way] <= max(5, most // 3):
            chosen.append(p)
        if len(chosen) == most:
            break
    return chosen


def _powers(low: int, high: int) -> list[int]:
    return [1 << n for n in range(high.bit_length()) if low <= 1 << n <= high]


def _candidates(facts: _Facts) -> Iterator[Parameters]:
    if facts.inner:
        yield from _inner_candidates(facts)
    if facts.outer:
        yield from _outer_candidates(facts)


def _exchanges(most: int) -> Iterator[tuple[str, int]]:
    yield "block", 1
    for segments in (2, 4, 8, 16):
        yield "cluster", segments
    for segments in _powers(2, most):
        yield "split", segments


def _inner_candidates(facts: _Facts) -> Iterator[Parameters]:
    widest = max(
        v
        for v in (16 // facts.item, 8 // facts.item, 4 // facts.item, 1)
        if v >= 1 and facts.line % v == 0
    )
    for exchange, segments in _exchanges(1024):
        for team in _powers(WARP if facts.points > 1024 else 1 if facts.points < 256 else 8, 1024):
            across = max(1, (256 if facts.points <= 1024 else 128) // team)
            base: Parameters = {
                "vector": widest,
                "team": team,
                "across": across,
                "segments": segments,
                "exchange": exchange,
            }
            per_thread = ceildiv(facts.points, team * segments)
            if exchange == "cluster" and across > 1:
                continue
            if (facts.arrays or facts.scans) and exchange != "split" and per_thread <= 64:
                yield {**base, "keep": "registers"}
            if facts.arrays and not facts.scans and exchange != "split":
                for stages in (1, 2, 3):
                    yield {**base, "keep": "shared", "stages": stages, "unroll": 4}
            if not (facts.scans and exchange != "block"):
                yield {**base, "keep": "none", "unroll": 8 if facts.arrays == 0 else 4}
                if facts.arrays == 0 and not facts.scans and exchange == "block":
                    yield {**base, "keep": "none", "unroll": 4}
                    yield {**base, "keep": "none", "unroll": 16}


def _outer_candidates(facts: _Facts) -> Iterator[Parameters]:
    widest = [
        v for v in (16 // facts.item, 8 // facts.item, 1) if v >= 1 and facts.columns % v == 0
    ]
    for exchange, segments in _exchanges(256):
        for team in _powers(1, 32):
            for vector in sorted(set(widest), reverse=True):
                for across in (
                    (32, 64)
                    if facts.columns > 32
                    else (min(32, 1 << (facts.columns - 1).bit_length()),)
                ):
                    base: Parameters = {"lanes": "outer", "vector": vector, "team": team, "across": across,
                                        "segments": segments, "exchange": exchange}  # fmt: skip
                    per_thread = ceildiv(facts.points, team * segments) * vector
                    if (facts.arrays or facts.scans) and exchange != "split" and per_thread <= 64:
                        yield {**base, "keep": "registers"}
                    if not (facts.scans and (exchange != "block" or team > 1)):
                        yield {**base, "keep": "none", "unroll": 8}


def _score(layout: Layout, facts: _Facts, device: DeviceFacts) -> float:
    """Expected share of the memory bandwidth, about; 0 where the schedule makes no sense."""
    threads, per_thread = layout.threads, layout.chunks * layout.vector
    if layout.exchange == "split" and (
        facts.scans or layout.segments > ceildiv(facts.points, layout.tile)
    ):
        return 0.0
    held = (
        per_thread * max(1, facts.arrays)
        if layout.keep == "registers"
        else layout.unroll * layout.vector
    )
    registers = BASE_REGISTERS + held * max(1, facts.item // 4) + 2 * layout.vector
    if layout.keep == "registers" and registers > 128:
        return 0.0
    by_registers = REGISTERS // (threads * max(32, -(-registers // 8) * 8))
    by_warps = WARP_SLOTS * 32 // threads
    shared = (
        threads * layout.chunks * layout.vector * facts.item * facts.arrays * layout.stages
        if layout.keep == "shared"
        else 0
    )
    by_shared = SHARED_BYTES // (shared + 1024) if shared else 32
    blocks = min(by_registers, by_warps, by_shared, 32)
    if blocks < 1:
        return 0.0
    groups = (
        ceildiv(layout.rows, layout.across * (1 if layout.inner else layout.vector))
        * layout.segments
    )
    resident = min(blocks, max(1.0, groups / device.sm_count))
    under_way = (
        per_thread if layout.keep != "none" else min(per_thread, layout.unroll * layout.vector)
    )
    in_flight = resident * threads * under_way * facts.item * max(1, facts.arrays)
    score = min(1.0, in_flight / WANTED_IN_FLIGHT) ** 0.5
    score *= min(1.0, groups / device.sm_count)
    turns = layout.stages if layout.stages > 1 else resident
    if facts.arrays and layout.keep != "none":
        score *= 1 - 0.25 / turns
    waves = groups / (device.sm_count * blocks)
    if layout.stages == 1 and 1 < waves < 6:
        score *= waves / math.ceil(waves) * 0.5 + 0.5
    score /= layout.chunks * layout.tile * layout.segments / facts.points
    if layout.keep == "none" and facts.arrays:
        score /= 1 + 0.45 * (facts.passes - 1)
    score *= 0.97 if layout.keep == "shared" else 1.0
    score *= {"block": 1.0, "cluster": 0.97 - 0.004 * layout.segments, "split": 0.9}[
        layout.exchange
    ]
    if layout.exchange == "split":
        score /= 1 + 2.0 * layout.segments / max(1, facts.points // max(1, layout.tile))
    if layout.inner and facts.reductions:
        score *= 1 - 0.004 * math.log2(max(1, layout.team))
    return score
