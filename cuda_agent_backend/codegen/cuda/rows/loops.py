"""Loops over the positions of a row that one thread meets.

`position_loop` meets all of them, `span_loops` some ranges of them, and `asking_loops` reads several positions ahead of
the work on the first. All three call a lambda ``step(k, q)``: ``k`` counts the thread's positions, ``q`` is the place
within the block's segment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.cuda.common.text import block, indented
from cuda_agent_backend.codegen.cuda.rows.layout import Layout

RUN = 64
"""Positions of a thread that are summed in one go; longer sums go in two levels, which keeps their error low."""
ASKED = re.compile(r"auto (\w+) = (ca::load\w*<L>\(m_.*\));")
"""A load from memory, as the printer writes it: its name and its text."""
MADE = re.compile(r"\bs\d+v\d+\b")
"""A value that the body itself makes."""


@dataclass(frozen=True)
class Span:
    """Chunks ``low`` up to ``high``, ``first`` before them, met downwards if ``down``."""

    low: int
    high: int
    first: tuple[str, ...] = ()
    down: bool = False


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
