"""Text that combines the accumulators of a team: within a warp, a block, a cluster, or by way of memory.

`combine_accumulators` combines what the threads of a block, or of a cluster, have. `combine_across_grid` does so for
blocks that stay on the device. `store_partial` and `load_partials` pass results from one launch to the next.
"""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.common.parts import Accumulator, SharedMemory
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.ir.device import WARP, ceildiv

Reductions = list[tuple[str, Accumulator]]
"""(suffix, accumulator) of reductions that end together: ``a<suffix>`` goes in, ``f<suffix>`` comes out."""


def combine_accumulators(
    layout: Layout,
    memory: SharedMemory,
    reductions: Reductions,
    cluster: bool,
    centered: bool = False,
) -> list[str]:
    """Statements after which every thread of a team has ``f<suffix>``, the whole row's accumulator.

    ``cluster``: the row's segments are in the blocks of this cluster; else only this block's part is joined.
    ``centered``: what is Welford's has gone through ``center``.
    """
    return (
        _combine_inner(layout, memory, reductions, cluster, centered)
        if layout.inner
        else _combine_outer(layout, memory, reductions, cluster)
    )


def center_statement(layout: Layout, n: str) -> str:
    """The statement between the sum of values at hand and their deviations, in Welford's accumulator ``a<n>``."""
    if layout.inner:
        return f"ca::center_group<{min(layout.team, WARP)}>(a{n});"
    return f"a{n}.center();"


def _combine_inner(
    layout: Layout, memory: SharedMemory, reductions: Reductions, cluster: bool, centered: bool
) -> list[str]:
    width, warps = min(layout.team, WARP), layout.warps
    out = [
        f"auto f{n} = ca::group_join<{width}>(a{n});"
        if centered and acc.is_welford
        else f"auto f{n} = ca::warp_join<{width}>(ca::across<L>(a{n}));"
        for n, acc in reductions
    ]
    if warps == 1 and not cluster:
        return out
    segments = layout.segments if cluster else 1
    turn = "turn" if layout.stages > 1 and not cluster else "0"
    sends, gathers = [], []
    for n, acc in reductions:
        count = warps * segments * (1 if cluster else layout.across)
        memory.take(f"slot{n}", acc.of(1), count * layout.stages, acc.size(1))
        at = f"slot{n} + {turn} * {count}"
        if layout.stages > 1 and cluster:
            at = f"slot{n} + turn * {count}"
        if cluster:
            sends.append(
                f"if ((tid & 31) < {segments}) ca::store_remote({at} + segment * {warps} + tid / 32, tid & 31, f{n});"
            )
            gathers.append(f"f{n} = ca::gather_join<{warps * segments}>({at});")
        else:
            sends.append(f"if ((tid & 31) == 0) ({at})[tid / 32] = f{n};")
            gathers.append(f"f{n} = ca::gather_join<{warps}>({at} + r * {warps});")
    barrier = ["ca::cluster_arrive();", "ca::cluster_wait();"] if cluster else ["__syncthreads();"]
    return [*out, *sends, *barrier, *gathers]


def near_threads(layout: Layout) -> int:
    """Threads of a team (lanes outer) that are in one warp: they meet without shared memory."""
    return 1 if WARP % layout.across else min(layout.team, WARP // layout.across)


def _halves(count: int) -> list[int]:
    """Half of ``count``, a power of two, half of that, down to 1."""
    return [1 << n for n in range(count.bit_length() - 1)][::-1]


def _combine_outer(
    layout: Layout, memory: SharedMemory, reductions: Reductions, cluster: bool
) -> list[str]:
    out = [f"auto f{n} = a{n};" for n, _ in reductions]
    if layout.team > 1:
        out += _across_team(layout, memory, reductions)
    if cluster:
        out += _across_cluster(layout, memory, reductions)
    return out


def _across_team(layout: Layout, memory: SharedMemory, reductions: Reductions) -> list[str]:
    """Lanes across rows: first the threads of a row that are in one warp, then through shared memory, by halves."""
    team, across, lanes, near = layout.team, layout.across, layout.vector, near_threads(layout)
    out = [
        f"f{n}.merge(ca::shuffle_xor(f{n}, {across * step}));"
        for step in _halves(near)
        for n, _ in reductions
    ]
    one = f"if (t % {near} == 0) " if near > 1 else ""
    place = f"t / {near}" if near > 1 else "t"
    for n, acc in reductions:
        memory.take(f"slot{n}", acc.of(lanes), team // near * across, acc.size(lanes))
        out.append(f"{one}slot{n}[{place} * {across} + x] = f{n};")
    out.append("__syncthreads();")
    steps = _halves(team // near)
    if steps and near > 1:
        out += [f"if (t < {team // near}) f{n} = slot{n}[t * {across} + x];" for n, _ in reductions]
    for step in steps:
        inside = " ".join(
            f"f{n}.merge(slot{n}[(t + {step}) * {across} + x]); slot{n}[t * {across} + x] = f{n};"
            for n, _ in reductions
        )
        out += [f"if (t < {step}) {{ {inside} }}", "__syncthreads();"]
    return [*out, *(f"f{n} = slot{n}[x];" for n, _ in reductions)]


def _across_cluster(layout: Layout, memory: SharedMemory, reductions: Reductions) -> list[str]:
    """Lanes across rows: each block sends what it has to all blocks of its cluster, and combines what it got."""
    team, across, lanes, segments = layout.team, layout.across, layout.vector, layout.segments
    out = []
    for n, acc in reductions:
        memory.take(f"far{n}", acc.of(lanes), segments * across, acc.size(lanes))
        here = f"far{n} + segment * {across} + x"
        out.append(
            f"for (int c = t; c < {segments}; c += {team}) ca::store_remote({here}, c, f{n});"
        )
    out += ["ca::cluster_arrive();", "ca::cluster_wait();"]
    for n, _ in reductions:
        out += [
            f"f{n} = far{n}[x];",
            "#pragma unroll",
            f"for (int c = 1; c < {segments}; ++c) f{n}.merge(far{n}[c * {across} + x]);",
        ]
    return out


# --- partial results in memory, between blocks that stay on the device (see `cooperative`) ---------------------------

EXCHANGE_BUFFER = "met"
"""The buffer of partial results: each word has 32 bits of an accumulator, beside the meeting's number."""
EXCHANGE_SLOTS = 2
"""Places in the buffer for what a block leaves, used in turn."""


def exchange_words(reductions: Reductions) -> int:
    """Words that a block leaves for a meeting."""
    return sum(acc.size(1) // 4 for _, acc in reductions)


def combine_across_grid(
    layout: Layout, memory: SharedMemory, reductions: Reductions, step: int
) -> list[str]:
    """Statements that combine each ``f<suffix>``, of this block, with those of its group's other blocks.

    step: words of memory from block to block.
    """
    threads = min(layout.threads, ceildiv(layout.segments, WARP) * WARP)
    leaves, joins, results, word = [], [], [], 0
    for n, acc in reductions:
        memory.take(f"all{n}", acc.of(1), threads // WARP, acc.size(1))
        leaves.append(f"ca::leave(group + segment * {step} + {word}, f{n}, meeting);")
        form = f"{acc.of(1)}, {layout.segments}, {threads}"
        joins += [
            f"f{n} = ca::far_join<{form}>(group + {word}, {step}, meeting);",
            f"if ((tid & 31) == 0) all{n}[tid / 32] = f{n};",
        ]
        results.append(f"f{n} = ca::gather_join<{threads // WARP}>(all{n});")
        word += exchange_words([(n, acc)])
    first = f"meeting % {EXCHANGE_SLOTS} * int(gridDim.x) + int(blockIdx.x) - segment"
    return [
        "++meeting;",
        f"if (tid < {threads}) {{",
        f"  uint64_t* const group = {EXCHANGE_BUFFER} + ({first}) * {step};",
        f"  if (tid == 0) {{ {' '.join(leaves)} }}",
        "  __syncwarp();",
        *(f"  {line}" for line in joins),
        "}",
        "__syncthreads();",
        *results,
    ]


# --- partial results in memory, between launches ----------------------------------------------------------------


def store_partial(layout: Layout, n: str, acc: Accumulator) -> list[str]:
    """Keep ``f<n>`` of this segment: element ``segment`` of the row (inner), or the row's of its segment (outer)."""
    if layout.inner:
        at, lanes = f"row * {layout.segments} + segment", 1
    else:
        at, lanes = f"segment * {layout.rows} + row", layout.vector
    stores = [f"{member}{n}[{at} + i] = f{n}.{member}[i];" for member, _ in acc.fields]
    return [
        "if (t == 0 && live) {",
        "#pragma unroll",
        f"  for (int i = 0; i < {lanes}; ++i) {{ {' '.join(stores)} }}",
        "}",
    ]


def load_partials(
    layout: Layout, segments: int, n: str, acc: Accumulator, count: str | None = None
) -> list[str]:
    """``a<n>`` of this thread's share of the first ``count`` (all) of the row's ``segments`` partial results."""
    lanes = layout.scalar_lanes
    at = f"row * {segments} + s" if layout.inner else f"s * {layout.rows} + row"
    reads = [f"one.{member}[i] = {member}{n}[{at} + i];" for member, _ in acc.fields]
    return [
        f"{acc.of(lanes)} a{n};",
        "#pragma unroll 4",
        f"for (int s = t; s < {count or segments}; s += {layout.team}) {{",
        f"  {acc.of(lanes)} one;",
        "#pragma unroll",
        f"  for (int i = 0; i < {lanes}; ++i) {{ {' '.join(reads)} }}",
        f"  a{n}.merge(one);",
        "}",
    ]
