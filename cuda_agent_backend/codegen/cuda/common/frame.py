"""The frame of a row kernel: which row, which part of it, and the loops over a thread's positions there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.rows.layout import Layout
from cuda_agent_backend.codegen.ir.device import DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.nest import Dim

RUN = 64
"""Positions of a thread that are summed in one go; longer sums go in two levels, which keeps their error low."""


ASKED = re.compile(r"auto (\w+) = (ca::load\w*<L>\(m_.*\));")
MADE = re.compile(r"\bs\d+v\d+\b")


def indented(lines: Sequence[str], pad: str = "  ") -> list[str]:
    return [pad + line for line in lines]


def block(lines: Sequence[str]) -> list[str]:
    return ["{", *indented(lines), "}"]


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


def decompose(row: str, outer: Sequence[Dim], index_type: str) -> list[str]:
    """The outer variables of row number ``row``."""
    out, stride = [], 1
    for number, (symbol, size) in reversed(list(enumerate(outer))):
        value = row if stride == 1 else f"ca::idiv({row}, {stride})"
        if number:
            value = f"ca::imod({value}, {size})"
        out.append(f"const {index_type} {symbol} = {value};")
        stride *= size
    return out[::-1]


def groups_per_line(layout: Layout, columns: int) -> int:
    """Blocks that lie over one line of ``columns`` rows (lanes outer)."""
    return ceildiv(columns, layout.across * layout.vector)


def row_groups(layout: Layout, columns: int) -> int:
    """Blocks that lie over all rows, one segment of each; ``columns``: rows that are neighbours in memory."""
    if layout.inner:
        return ceildiv(layout.rows, layout.across)
    return layout.rows // columns * groups_per_line(layout, columns)


def is_partial(layout: Layout, outer: Sequence[Dim]) -> bool:
    """Whether some block has threads without a row; they work on another's and store nothing."""
    if layout.inner:
        return layout.rows % layout.across != 0
    return outer[-1][1] % (layout.across * layout.vector) != 0


def row_lines(layout: Layout, outer: Sequence[Dim], turn: str = "") -> list[str]:
    """The row of this thread, ``live`` and the outer variables. ``turn``: which rows, if not the block's number."""
    group, partial = turn or f"int(blockIdx.x) / {layout.segments}", is_partial(layout, outer)
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


def staged_lines(
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


def rows_in_turn(layout: Layout, outer: Sequence[Dim], body: Sequence[str]) -> list[str]:
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


def position_loop(
    layout: Layout, body: Sequence[str], statements: Sequence[str] = (), flush: Sequence[str] = ()
) -> list[str]:
    """``body`` at each position ``j`` of this thread, the ``k``-th of them; ``flush`` after each run of them."""
    chunks = layout.chunks
    if layout.keep != "registers":
        return span_loops(layout, body, statements, flush, [Span(0, chunks)])
    at, full = _places(layout)
    guard = f"if (k < {full} || q < limit) " if full < chunks else ""
    loop = f"for (int k = 0; k < {chunks}; ++k) {{ const int q = {at}; {guard}step(k, q); }}"
    return block([*_step(layout, body, statements), "#pragma unroll", loop])


@dataclass(frozen=True)
class Span:
    """Chunks ``low`` up to ``high``, ``first`` before them, met downwards if ``down``."""

    low: int
    high: int
    first: tuple[str, ...] = ()
    down: bool = False


def span_loops(
    layout: Layout,
    body: Sequence[str],
    statements: Sequence[str],
    flush: Sequence[str],
    spans: Sequence[Span],
) -> list[str]:
    """``body`` at the positions of ``spans``, one after another."""
    loops = [line for span in spans for line in _span_loop(layout, flush, span)]
    return block([*_step(layout, body, statements), *loops])


def _step(layout: Layout, body: Sequence[str], statements: Sequence[str]) -> list[str]:
    head = [f"constexpr int L = {layout.vector};", f"const {layout.index_type} j = first + q;"]
    return [
        "auto step = [&](const int k, const int q) {",
        *indented([*head, *statements, *body]),
        "};",
    ]


def _places(layout: Layout) -> tuple[str, int]:
    """Where position ``k`` of a thread is in its segment; how many of them every thread surely has."""
    chunks = layout.chunks
    if layout.blocked:
        at, full = f"t * {chunks} + k", chunks if layout.team * chunks == layout.segment else 0
    elif layout.along > 1:
        at, full = f"(k * {layout.team} + t) * {layout.along}", layout.segment // layout.tile
    else:
        at, full = f"k * {layout.team} + t", layout.segment // layout.tile
    return at, full if layout.even else 0


def _span_loop(layout: Layout, flush: Sequence[str], span: Span) -> list[str]:
    at, full = _places(layout)
    low, high = span.low, span.high
    if layout.even or layout.blocked:
        whole = str(min(max(low, full), high))
    elif (low, high) == (0, layout.chunks):
        whole = f"limit / {layout.tile}"
    else:
        whole = f"min({high}, max({low}, limit / {layout.tile}))"
    if layout.pairs:  # a tile without a partner is met as part of the tail
        full -= full % 2
        whole = str(int(whole) // 2 * 2) if whole.isdecimal() else f"({whole}) / 2 * 2"
    start, test, step = (
        (f"{high} - 1", f"k >= {whole}", "--k") if span.down else (whole, f"k < {high}", "++k")
    )
    one = f"{{ const int q = {at}; if (q < limit) step(k, q); }}"
    tail = [f"for (int k = {start}; {test}; {step}) {one}"] if full < high else []
    at = f"(k >> 1) * {2 * layout.team} + 2 * t + (k & 1)" if layout.pairs else at
    tiles = _whole_tiles(layout, at, whole, flush, span)
    return [*span.first, *block([*tail, *tiles] if span.down else [*tiles, *tail]), *flush]


def _whole_tiles(
    layout: Layout, at: str, whole: str, flush: Sequence[str], span: Span
) -> list[str]:
    low = span.low
    unroll = f"#pragma unroll {max(1, min(layout.unroll, span.high - low))}"
    if not flush and not span.down:
        return [unroll, f"for (int k = {low}; k < {whole}; ++k) step(k, {at});"]
    if not flush:
        return [unroll, f"for (int k = {whole} - 1; k >= {low}; --k) step(k, {at});"]
    place = f"{whole} - 1 - (n - {low})" if span.down else "n"
    return [
        f"int done = {low};",
        f"for (; done + {RUN} <= {whole}; done += {RUN}) {{",
        f"  {unroll}",
        f"  for (int i = 0; i < {RUN}; ++i) {{ const int n = done + i, k = {place}; step(k, {at}); }}",
        *indented(flush),
        "}",
        unroll,
        f"for (int n = done; n < {whole}; ++n) {{ const int k = {place}; step(k, {at}); }}",
    ]


def asking_loops(
    layout: Layout, body: Sequence[str], statements: Sequence[str], flush: Sequence[str]
) -> list[str]:
    """``body`` at all positions of this thread, upwards: what ``ahead`` of them read first, then their work."""
    asked = [found for line in body if (found := _asked(line)) is not None]
    names = [name for name, _ in asked]
    fields = " ".join(f"decltype({name}) a{n};" for n, name in enumerate(names))
    head = [f"constexpr int L = {layout.vector};", f"const {layout.index_type} j = first + q;"]
    ask = [
        *head,
        *statements,
        *(f"auto {name} = {value};" for name, value in asked),
        f"struct Asked {{ {fields} }};",
        f"return Asked{{{', '.join(names)}}};",
    ]
    have = [f"auto {name} = asked.a{n};" for n, name in enumerate(names)]
    work = [line for line in body if _asked(line) is None]
    return block(
        [
            "auto ask = [&](const int q) {",
            *indented(ask),
            "};",
            "auto step = [&](const int k, const int q, const decltype(ask(0))& asked) {",
            *indented([*head, *statements, *have, *work]),
            "};",
            *_asking_turns(layout, flush),
        ]
    )


def _asked(line: str) -> tuple[str, str] | None:
    """Name and text of a load of the body itself that needs nothing which the body makes."""
    found = ASKED.fullmatch(line)
    return None if found is None or MADE.search(found[2]) else (found[1], found[2])


def _asking_turns(layout: Layout, flush: Sequence[str]) -> list[str]:
    at, full = _places(layout)
    count, chunks = layout.ahead, layout.chunks
    whole = str(full) if layout.even else f"limit / {layout.tile}"

    def turn(guard: bool) -> list[str]:
        place = "q < limit ? q : 0" if guard else "q"
        own = f"const int k = done + i, q = {at};"
        check = "if (q < limit) " if guard else ""
        return [
            f"decltype(ask(0)) asked[{count}];",
            "#pragma unroll",
            f"for (int i = 0; i < {count}; ++i) {{ {own} asked[i] = ask({place}); }}",
            "#pragma unroll",
            f"for (int i = 0; i < {count}; ++i) {{ {own} {check}step(k, q, asked[i]); }}",
        ]

    # runs end where a whole number of turns does
    ending = max(1, RUN // count) * count
    ends = [f"if ((done + {count}) % {ending} == 0) {{ {' '.join(flush)} }}"] if flush else []
    out = ["int done = 0;"]
    if not layout.even or full >= count:
        out += [f"for (; done + {count} <= {whole}; done += {count}) {{"]
        out += [*indented([*turn(False), *ends]), "}"]
    if full < chunks or chunks % count:
        # what is beyond the row is read at its beginning, and not used
        out += [f"for (; done < {chunks}; done += {count}) {{", *indented(turn(True)), "}"]
    return [*out, *flush]
