"""The figures of a run as one picture: a row for each figure, its stages one after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.health.journal import NAME, read

SHOWN = (
    "reward",
    "validation",
    "entropy",
    "ratio",
    "kl",
    "explained_variance",
    "cut_off",
    "invalid",
    "engine_gap",
)


def plot(run: Path, stages: Sequence[str], file: Path) -> list[str]:
    """Write the picture; the stages that are in it. Raises OSError where it cannot be written, ImportError without
    matplotlib, ValueError where no stage has figures."""
    found = {stage: read(run / stage / NAME) for stage in stages}
    found = {stage: steps for stage, steps in found.items() if steps}
    if not found:
        raise ValueError(f"no stage in {run} has figures yet")
    shown = [name for name in SHOWN if any(name in s for steps in found.values() for s in steps)]
    _draw(found, shown, file)
    return list(found)


def _draw(found: dict[str, list[dict[str, float]]], shown: Sequence[str], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(shown), 1, sharex=True, squeeze=False, figsize=(8, 1.6 * len(shown))
    )
    at = 0
    for stage, steps in found.items():
        places = range(at + 1, at + len(steps) + 1)
        for axis, name in zip(axes[:, 0], shown, strict=True):
            _line(
                axis, [(p, s[name]) for p, s in zip(places, steps, strict=True) if name in s], stage
            )
            axis.set_ylabel(name)
        at += len(steps)
    axes[0, 0].legend(loc="upper left", ncols=len(found), fontsize="small")
    axes[-1, 0].set_xlabel("step, stages one after another")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _line(axis: Any, points: Sequence[tuple[int, float]], stage: str) -> None:
    axis.plot([x for x, _ in points], [y for _, y in points], label=stage)
