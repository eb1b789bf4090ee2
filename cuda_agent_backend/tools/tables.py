"""What people see: tables on the terminal, and the same facts as JSON."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cuda_agent_backend.partition.report import GraphReport, RegionReport

WIDTH = 120
"""Columns where output goes to no terminal."""
UNBROKEN = frozenset(
    (
        *("key", "kind", "target", "graph", "speed-up", "error ratio", "made"),
        *("model", "kernels", "over Inductor", "2nd process", "cold", "cached"),
    )
)
DECIDING = ("keep", "rows", "keys", "vector", "chunk", "stages", "unroll", "threads")
"""Parameters of schedules that are shown, those that say most first, unless they are 0 or 1."""
Speedup = tuple[float | None, float | None, float | None]
"""Lower bound of the 95 % interval, median, upper bound; None for what is not known."""


def console() -> Console:
    """Where tables go. What programs read goes to `--json` instead."""
    from rich.console import Console

    width = shutil.get_terminal_size(fallback=(WIDTH, 24)).columns
    return Console(highlight=False, width=width)


def region_table(graphs: Iterable[GraphReport], title: str = "", room: bool = False) -> Table:
    """The result table: one line a region. Speed-ups are over the faster of eager and Inductor.

    room: also the estimate of how far Inductor is from the least bytes that must be moved.
    """
    from rich.text import Text

    from cuda_agent_backend.partition.report import HIT

    more = ("room",) if room else ()
    table = new_table(
        title, "graph", "region", "sketch", "speed-up", "error ratio", *more, "why not"
    )
    for graph in graphs:
        for region in graph.regions:
            *cells, why = region_cells(region)
            estimate = ("-" if region.room is None else f"{region.room:.1f}",) if room else ()
            style = "green" if region.status == HIT else ""
            table.add_row(*map(Text, (graph.kind, *cells, *estimate, why)), style=style)
    return table


def region_cells(region: RegionReport) -> tuple[str, str, str, str, str]:
    """Region, sketch (in short), speed-up with its interval, error ratio, why not."""
    speedup = interval((region.low, region.speedup, region.high))
    error = "-" if region.error_ratio is None else f"{region.error_ratio:.2f}"
    return region_name(region), sketch_name(region.label), speedup, error, region.reason


def sketch_name(label: str, kernels: int = 2, parameters: int = 2) -> str:
    """A schedule as people read it: each kernel's family and what decides about it. Other labels as they are."""
    try:
        schedule = json.loads(label)
        names = [_kernel_name(kernel, parameters) for kernel in schedule]
        rewrite = "".join(str(kernel["rewrite"]) for kernel in schedule if "rewrite" in kernel)
    except (ValueError, TypeError, AttributeError):
        return label or "-"
    counts = Counter(names)
    shown = [f"{count}x {name}" if count > 1 else name for name, count in counts.items()]
    more = f" + {len(shown) - kernels} more" if len(shown) > kernels else ""
    how = f"{rewrite.replace('+', ', ')}: " if rewrite else ""
    return how + " + ".join(shown[:kernels]) + more or "-"


def _kernel_name(kernel: Mapping[str, Any], parameters: int) -> str:
    from cuda_agent_backend.codegen.registry import family_of  # torch is behind it

    family = str(kernel["lanes"]) if "lanes" in kernel else family_of(kernel)
    shown = [f"{name} {kernel[name]}" for name in DECIDING if kernel.get(name, 0) not in (0, 1)]
    return " ".join([family, *shown[:parameters], *(["stream"] if kernel.get("stream") else [])])


def region_name(region: RegionReport, shown: int = 4) -> str:
    """Its most frequent operators, and how many nodes and bytes it has; of a rest, that it is one."""
    ranked = sorted(region.operators.items(), key=lambda item: (-item[1], item[0]))
    names = [name if count == 1 else f"{name} x{count}" for name, count in ranked[:shown]]
    more = ", ..." if len(ranked) > shown else ""
    rest = "beside it: " if region.beside else ""
    return f"{rest}{', '.join(names)}{more} ({region.nodes} nodes, {region.moved / 1e6:.1f} MB)"


def interval(speedup: Speedup | None) -> str:
    """(low, median, high) as "1.32 [1.28, 1.35]", "1.32 (over 1.28)" without high; "-" where nothing was measured."""
    low, median, high = speedup or (None, None, None)
    if median is None:
        return "-"
    if low is None:
        return f"{median:.2f}"
    bounds = f"(over {low:.2f})" if high is None else f"[{low:.2f}, {high:.2f}]"
    return f"{median:.2f} {bounds}"


def speedup_of(value: object) -> Speedup:
    """(low, median, high) of a JSON object that has these keys; None for what it has not."""
    found = value if isinstance(value, Mapping) else {}
    return _number(found.get("low")), _number(found.get("median")), _number(found.get("high"))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def short(value: object, limit: int = 160) -> str:
    """A JSON value on one line, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def plain_table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """A table of plain text."""
    from rich.text import Text

    table = new_table(title, *header)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def new_table(title: str, *columns: str) -> Table:
    """An empty table with these columns; add rows to it."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in UNBROKEN)
    return table
