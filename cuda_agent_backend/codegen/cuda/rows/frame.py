"""The frame of a row kernel: which rows a block works on, and who each thread is."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent_backend.codegen.cuda.common.text import decompose, indented
from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.kernel import Dim


def thread_lines(layout: Layout) -> list[str]:
    """Who this thread is, and which part of the row is this block's."""
    team, across, segments = layout.team, layout.across, layout.segments
    names = (
        f"t = tid % {team}, r = tid / {team}"
        if layout.inner
        else f"x = tid % {across}, t = tid / {across}"
    )
    segment = "ca::cluster_rank()" if layout.clustered else f"blockIdx.x % {segments}"
    size = layout.segment
    limit = f"{size}" if layout.even else f"min({size}, {layout.points} - segment * {size})"
    return [
        "const int tid = threadIdx.x;",
        f"const int {names};",
        f"const int segment = {segment};",
        f"const {layout.index_type} first = {layout.index_type}(segment) * {size};",
        f"const int limit = {limit};",
        *(["ca::cluster_here();"] if layout.clustered else []),
    ]


def groups_per_line(layout: Layout, columns: int) -> int:
    """Blocks that lie over one line of ``columns`` rows (lanes outer)."""
    return ceildiv(columns, layout.across * layout.vector)


def row_groups(layout: Layout, columns: int) -> int:
    """Blocks that lie over all rows, one segment of each; ``columns``: rows that are neighbours in memory."""
    if layout.inner:
        return ceildiv(layout.rows, layout.across)
    return layout.rows // columns * groups_per_line(layout, columns)


def has_idle_threads(layout: Layout, outer: Sequence[Dim]) -> bool:
    """Whether some block has threads without a row; they work on another's and store nothing."""
    if layout.inner:
        return layout.rows % layout.across != 0
    return outer[-1][1] % (layout.across * layout.vector) != 0


def row_lines(layout: Layout, outer: Sequence[Dim], turn: str = "") -> list[str]:
    """The row of this thread, ``live`` and the outer variables. ``turn``: which rows, if not the block's number."""
    group, partial = turn or f"int(blockIdx.x) / {layout.segments}", has_idle_threads(layout, outer)
    if layout.inner:
        out = [f"int row = {group} * {layout.across} + r;"]
        if partial:
            out.append(
                f"const bool live = row < {layout.rows}; row = live ? row : {layout.rows - 1};"
            )
    else:
        size = outer[-1][1]
        per_line = groups_per_line(layout, size)
        out = [
            f"const int group = {group};",
            f"int column = (group % {per_line} * {layout.across} + x) * {layout.vector};",
        ]
        if partial:
            out.append(f"const bool live = column < {size}; column = live ? column : 0;")
        out.append(f"const int row = group / {per_line} * {size} + column;")
    if not partial:
        out.append("const bool live = true;")
    return [*out, *decompose("row", outer, layout.index_type)]


def pipelined_rows(
    layout: Layout, outer: Sequence[Dim], copies: Sequence[str], body: Sequence[str], barrier: bool
) -> list[str]:
    """Rows in a loop; those to come are on their way to shared memory while one is worked on."""
    stages, step = layout.stages, f"int(gridDim.x / {layout.segments})"
    rows = decompose("row", outer, layout.index_type)
    fetch = [f"if (row < {layout.rows}) {{", *indented([*rows, *copies]), "}", "ca::copy_commit();"]
    turn = [
        f"fetch(row + {stages - 1} * {step}, turn == 0 ? {stages - 1} : turn - 1);",
        f"ca::copy_wait<{stages - 1}>();",
        *rows,
        *body,
        *(["__syncthreads();"] if barrier else []),
        f"turn = turn == {stages - 1} ? 0 : turn + 1;",
    ]
    start = f"int(blockIdx.x) / {layout.segments}"
    return [
        "auto fetch = [&](int row, int stage) {",
        *indented(fetch),
        "};",
        "const bool live = true;",
        "int turn = 0;",
        f"for (int s = 0; s < {stages - 1}; ++s) fetch({start} + s * {step}, s);",
        *(["ca::cluster_wait();"] if layout.clustered else []),
        f"for (int row = {start}; row < {layout.rows}; row += {step}) {{",
        *indented(turn),
        "}",
    ]


def row_loop(layout: Layout, outer: Sequence[Dim], body: Sequence[str]) -> list[str]:
    """Rows in a loop; one is brought in when the one before it is done."""
    group, groups = f"int(blockIdx.x) / {layout.segments}", f"int(gridDim.x) / {layout.segments}"
    return [
        "const bool live = true;",
        f"for (int row = {group}; row < {layout.rows}; row += {groups}) {{",
        *indented([*decompose("row", outer, layout.index_type), *body]),
        "}",
    ]


def grid_size(layout: Layout, outer: Sequence[Dim], device: DeviceFacts) -> int:
    """Blocks of the launch."""
    groups = row_groups(layout, outer[-1][1] if outer else 1)
    if layout.stages > 1 or layout.in_grid:
        groups = min(groups, max(1, layout.blocks * device.sm_count // layout.segments))
    return groups * layout.segments
