"""Alarms on figures, and the file of figures that a resumed run goes on from."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import pytest

from trainer.health.alarms import Alarm, Limits, alarm_of
from trainer.health.journal import NAME, Figures, read
from trainer.health.plot import plot

WELL = {
    "reward": 1.0, "entropy": 1.0, "ratio": 1.0, "engine_gap": 1e-6, "cut_off": 0.0, "mismatched": 0.0, "failed": 0.0,
    "explained_variance": 0.5,
}  # fmt: skip
LIMITS = Limits(window=3, patience=2)


def steps(count: int, **changes: float) -> list[dict[str, float]]:
    return [{**WELL, **changes} for _ in range(count)]


def test_a_run_that_is_well_alarms_nobody() -> None:
    assert alarm_of([], LIMITS) is None
    assert alarm_of(steps(20), LIMITS) is None
    rising = [{**WELL, "reward": n / 10, "entropy": 1 - n / 30} for n in range(20)]
    assert alarm_of(rising, LIMITS) is None


@pytest.mark.parametrize(
    ("name", "figure", "value"),
    [
        ("reward", "reward", -1.0),
        ("entropy", "entropy", 1e-5),
        ("entropy", "entropy", 4.0),
        ("ratio", "ratio", 1.7),
        ("engine gap", "engine_gap", 0.2),
        ("cut off", "cut_off", 0.3),
        ("mismatched", "mismatched", 0.8),
        ("environment", "failed", 0.9),
        ("critic", "explained_variance", -2.0),
    ],
)
def test_each_figure_that_goes_wrong_alarms(name: str, figure: str, value: float) -> None:
    found = alarm_of(steps(6) + steps(3, **{figure: value}), LIMITS)
    assert found is not None and found.name == name and found.since == 6
    assert alarm_of(
        steps(6) + steps(1, **{figure: value}) + steps(2), LIMITS
    ) is None or figure in (
        "engine_gap",
        "explained_variance",
    )


def test_a_figure_that_is_not_a_number_alarms_at_once() -> None:
    found = alarm_of(steps(1, kl=math.nan), LIMITS)
    assert found == Alarm("not a number", "kl is not a number", 0)


def test_a_bad_critic_has_time_to_learn() -> None:
    assert alarm_of(steps(5, explained_variance=-2.0), LIMITS) is None
    assert alarm_of(steps(6, explained_variance=-2.0), LIMITS) is not None


def test_a_run_that_was_killed_goes_on_with_the_figures_of_its_checkpoint(tmp_path: Path) -> None:
    figures = Figures(tmp_path, 0)
    for n in range(4):
        figures.add({"reward": float(n)})
    figures.close()
    with (tmp_path / NAME).open("a") as file:
        file.write('{"reward": 4')
    again = Figures(tmp_path, 3)
    assert [s["reward"] for s in again.steps] == [0.0, 1.0, 2.0]
    again.add({"reward": 9.0})
    again.close()
    assert [s["reward"] for s in read(tmp_path / NAME)] == [0.0, 1.0, 2.0, 9.0]


def test_the_figures_of_a_run_are_drawn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has figures yet"):
        plot(tmp_path, ["warmup"], tmp_path / "a.svg")
    figures = Figures(tmp_path / "warmup", 0)
    for n in range(3):
        figures.add({"reward": float(n), "entropy": 1.0})
    figures.close()
    assert plot(tmp_path, ["pretrain", "warmup"], tmp_path / "a.svg") == ["warmup"]
    drawn = (tmp_path / "a.svg").read_text()
    assert "<svg" in drawn and "matplotlib.axis_4" in drawn and "matplotlib.axis_5" not in drawn


def test_the_importance_ratio_is_drawn(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "warmup", 0)
    figures.add({"reward": 1.0, "ratio": 1.25})
    figures.close()
    plot(tmp_path, ["warmup"], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "<!-- ratio -->" in drawn and "<!-- entropy -->" not in drawn


def test_a_full_disk_leaves_the_figures_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = Figures(tmp_path, 0)
    figures.add({"reward": 1.0})

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def tell(self) -> int:
            return int(self.file.tell())

        def write(self, data: bytes) -> int:
            self.file.write(data[:5])
            self.file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")

    opened = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode: Full(opened(path, mode)))
        with pytest.raises(OSError, match="No space"):
            figures.add({"reward": 2.0})
    figures.add({"reward": 3.0})
    figures.close()
    assert [s["reward"] for s in read(tmp_path / NAME)] == [1.0, 3.0]
