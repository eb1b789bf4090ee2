"""A story on a terminal."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cuda_agent_backend.agent.story.story import (
    Call,
    Chapter,
    Made,
    Point,
    Story,
    argument_text,
    best_so_far,
    printable,
    shortened,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

THOUGHTS, ARGUMENT, ANSWER, DIFF_LINES, SOURCE_LINES = 600, 200, 400, 40, 30
BAR = 40
"""Columns of the longest bar of the plot."""
STYLES = {
    "wins": "bold green",
    "submitted": "bold green",
    "correct": "green",
    "ok": "green",
    "too_slow": "yellow",
    "unchecked": "yellow",
    "noisy": "yellow",
    "profile": "cyan",
}


def style_of(status: str) -> str:
    """Of a status; what is not good is red."""
    return STYLES.get(status, "red")


def pages(story: Story) -> Iterator[RenderableType]:
    """What to print, in order."""
    yield _summary(story)
    for chapter in story.chapters:
        yield from _chapter(chapter)
    yield from (_text(f"  {said}", "dim") for said in story.last)
    if story.points:
        yield _text("\nSpeed-up over the faster baseline", "bold")
        yield from _plot(story.points)


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(printable(text), style=style)


def _summary(story: Story) -> RenderableType:
    from rich.panel import Panel
    from rich.table import Table

    header, end = story.header, story.end
    grid = Table.grid(padding=(0, 2))
    started = datetime.datetime.fromtimestamp(header.started)
    operators = story.operators
    shown = ", ".join(operators[:8]) + (", ..." if len(operators) > 8 else "")
    rows = [
        ("task", f"{header.task_digest[:16]} for {header.target}: {shown}"),
        ("policy", f"{header.policy} ({header.spec})"),
        ("started", f"{started:%Y-%m-%d %H:%M:%S}, budget {header.budget_s:.3g} s"),
        ("toolchain", header.toolchain),
        (
            "turns",
            f"{len(story.chapters)}" + (f", taken up again {story.resumed}x" * bool(story.resumed)),
        ),
    ]
    for name, value in rows:
        grid.add_row(_text(name, "dim"), _text(value))
    grid.add_row(_text("outcome", "dim"), _text(story.outcome, style_of(story.outcome)))
    if end is not None:
        reward = "unknown" if end.reward is None else f"{end.reward:g}"
        grid.add_row(_text("reason", "dim"), _text(shortened(end.reason, THOUGHTS)))
        grid.add_row(_text("reward", "dim"), _text(f"{reward}, after {end.used:.1f} s"))
    if story.torn:
        grid.add_row(_text("torn", "dim"), _text(f"{story.torn} bytes at the end"))
    return Panel(grid, title="trajectory", title_align="left")


def _chapter(chapter: Chapter) -> Iterator[RenderableType]:
    yield from (
        _text(f"  environment: {shortened(said, THOUGHTS)}", "dim") for said in chapter.said
    )
    cut = ", cut off" if chapter.turn.truncated else ""
    times = f"{chapter.seconds:.1f} s to decide, {chapter.tools_seconds:.1f} s of tools{cut}"
    yield _text(f"\nTurn {chapter.number}  ({times})", "bold")
    if chapter.turn.content:
        yield _text(f"  {shortened(chapter.turn.content, THOUGHTS)}", "italic")
    for call in chapter.calls:
        yield from _call(call)
    for made in chapter.made:
        yield from _made(made)
    for name, verdict in chapter.verdicts:
        yield _text(
            f"  verdict on {name}: {verdict.status}, {verdict.reason}", style_of(verdict.status)
        )


def _call(call: Call) -> Iterator[RenderableType]:
    given = call.arguments
    if isinstance(given, dict):
        parts = [f"{n}={shortened(argument_text(v), ARGUMENT)}" for n, v in given.items()]
        given = ", ".join(parts)
    given = shortened(given, 3 * ARGUMENT).replace("\n", "⏎ ")
    line = _text(f"  {call.name}({given}) -> ")
    line.append(printable(call.status), style_of(call.status))
    yield line
    answer = call.answer
    if isinstance(answer, dict):
        kept = {n: v for n, v in answer.items() if n not in ("ok", "status")}
        answer = ", ".join(f"{n} {argument_text(v)}" for n, v in kept.items())
    if answer:
        yield _text(f"    {shortened(answer, ANSWER)}", "dim")


def _made(made: Made) -> Iterator[RenderableType]:
    if not made.before:
        lines = made.candidate.source.splitlines()
        yield _text(f"  candidate {made.name}, {len(lines)} lines of {made.candidate.language}")
        yield from (_text(f"    {line}", "dim") for line in lines[:SOURCE_LINES])
        left = len(lines) - SOURCE_LINES
    else:
        yield _text(f"  candidate {made.name}, changed from {made.before}:")
        for line in made.diff[2:DIFF_LINES]:
            yield _text(f"    {line}", {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim"))
        left = len(made.diff) - DIFF_LINES
    if left > 0:
        yield _text(f"    ... {left} more lines", "dim")


def _plot(points: list[Point]) -> Iterator[RenderableType]:
    longest = max(point.speedup for point in points) or 1.0
    for point, best in zip(points, best_so_far(points), strict=True):
        bar = "█" * max(1, round(BAR * point.speedup / longest))
        star = " *" if point.speedup == best else ""
        yield _text(
            f"  turn {point.turn:>3} {bar:<{BAR}} {point.speedup:5.2f}x {point.status}{star}",
            style_of(point.status),
        )
