"""The plot of speed-up over turns, as SVG that stands by itself within a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from cuda_agent_backend.agent.story.story import Point, best_so_far, printable
from sandbox.timing.decision import THRESHOLD

Scale = Callable[[float], float]
WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 30
TICKS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def plot(points: Sequence[Point], turns: int) -> str:
    """Each speed-up by its turn, the best so far as a line, and where a win begins. "" without points."""
    if not points:
        return ""
    top = 1.15 * max(1.2, *(point.speedup for point in points))
    last = max(turns, 2)

    def x(turn: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (turn - 1) / (last - 1), 1)

    def y(speedup: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(speedup, top) / top, 1)

    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        ' aria-label="speed-up over the faster baseline, by turn">'
    ]
    for tick in (0.0, *(t for t in TICKS if t < top)):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:g}x</text>'
        )
    parts.append(
        f'<line class="win" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(THRESHOLD)}" y2="{y(THRESHOLD)}"/>'
    )
    for turn in sorted({1, *(round(1 + (last - 1) * k / 8) for k in range(1, 9))}):
        parts.append(
            f'<text class="tick" x="{x(turn)}" y="{HEIGHT - 10}" text-anchor="middle">{turn}</text>'
        )
    parts.append(f'<path class="best" d="{_steps(points, x, y, last)}"/>')
    for point in points:
        title = escape(
            printable(f"turn {point.turn}, {point.name}: {point.speedup:.2f}x, {point.status}")
        )
        kind = (
            "profile" if point.status == "profile" else "won" if point.status == "wins" else "lost"
        )
        parts.append(
            f'<circle class="{kind}" cx="{x(point.turn)}" cy="{y(point.speedup)}" r="4"><title>{title}</title></circle>'
        )
    return "\n".join([*parts, "</svg>"])


def _steps(points: Sequence[Point], x: Scale, y: Scale, last: int) -> str:
    best = best_so_far(points)
    path = f"M{x(points[0].turn)} {y(best[0])}"
    for point, value in zip(points[1:], best[1:], strict=True):
        path += f"H{x(point.turn)}V{y(value)}"
    return f"{path}H{x(last)}"
