"""The journal goes on where it was cut; the file and its card say what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.synthesis import run
from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.task import Composed, Wishes
from trainer.synthesis.dataset import journal
from trainer.synthesis.dataset.rows import row_of, split_of
from trainer.synthesis.machine import Machine

NAMES = {"device": "cpu", "device_name": "some", "torch": "2", "transformers": "5"}
MACHINE = Machine(NAMES, {"float32": {}}, 1 << 33, 2)


def facts(number: int) -> dict[str, Any]:
    return {
        "in_window": True,
        "inputs": [{"shape": [2, 3], "dtype": "float32"}],
        "weights": [{"name": "w", "shape": [3], "dtype": "float32"}],
        "bytes": 36,
        "graphs": [f"g{number}"],
        "structures": [f"s{number}"],
        "regions": ["r"],
        "left": [],
        "eager_s": 2e-3,
        "inductor_s": 1e-3,
        "floor_s": 1e-4,
    }


def settings(out: Path, count: int) -> run.Settings:
    return run.Settings(out, count, 0, 2, 10.0, Wishes.of("cpu"))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every seed number that is decided rather than read from the journal; every third one is dropped."""
    seen: list[int] = []

    def decided(seed: int, composer: Any, *_: Any) -> dict[str, Any]:
        seen.append(seed)
        task = composer.compose(seed, 0)
        if seed % 3 == 0 or not isinstance(task, Composed):
            return {"seed": seed, "status": "dropped", "filter": "stochastic", "reason": "it draws"}
        made = {**task.__dict__, "id": task.id}
        return {"seed": seed, "status": "passed", "task": made, "facts": facts(seed)}

    monkeypatch.setattr(run, "decided", decided)
    return seen


def made(out: Path, count: int) -> run.Tally:
    composer = RuleComposer(Wishes.of("cpu"))
    found = run.run(settings(out, count), composer, MACHINE, lambda tally: None)
    assert isinstance(found, run.Tally)
    return found


def test_a_run_that_goes_on_repeats_nothing_and_gives_the_same_set(
    tmp_path: Path, looked_at: list[int]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    made(tmp_path / "a", 4)
    done = json.loads((tmp_path / "a" / "report.json").read_text())["looked_at"]
    looked_at.clear()
    made(tmp_path / "a", 9)
    assert min(looked_at) >= done
    made(tmp_path / "b", 9)
    rows = [parquet.read_table(tmp_path / f / "ops-cpu.parquet").to_pylist() for f in "ab"]
    assert rows[0] == rows[1] and len(rows[0]) == 9
    assert rows[0][0]["ops"] and rows[0][0]["inputs"][0]["shape"] == [2, 3]
    file = parquet.ParquetFile(tmp_path / "a" / "ops-cpu.parquet")
    assert file.metadata.row_group(0).column(0).has_offset_index
    card = (tmp_path / "a" / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n") and "stochastic" in card


def test_a_line_that_a_kill_cut_off_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = journal.Journal(path, {"seed": 0})
    assert first.open() is None
    first.add({"seed": 1, "status": "dropped"})
    with path.open("ab") as file:
        file.write(b'{"seed": 2, "sta')
    again = journal.Journal(path, {"seed": 0})
    assert again.open() is None and set(again.entries) == {1}
    again.add({"seed": 2, "status": "dropped"})
    last = journal.Journal(path, {"seed": 0})
    assert last.open() is None and set(last.entries) == {1, 2}


def test_a_run_with_other_settings_does_not_go_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal.Journal(path, {"seed": 0, "torch": "2.11"}).open()
    other = journal.Journal(path, {"seed": 0, "torch": "2.13"}).open()
    assert isinstance(other, journal.OtherRun) and "torch" in other.reason


def test_tasks_with_the_same_families_are_in_one_split() -> None:
    assert split_of(["a", "b"]) == split_of(["b", "a", "a"])
    splits = [split_of([str(n)]) for n in range(400)]
    assert {"train", "validation", "test"} == set(splits)
    assert splits.count("train") > 320


def test_a_row_has_native_types() -> None:
    task = RuleComposer(Wishes.of("cpu")).compose(1, 0)
    assert isinstance(task, Composed)
    entry = {"task": {**task.__dict__, "id": task.id}, "facts": facts(1)}
    row = row_of(entry, NAMES)
    assert isinstance(row["ops"], list) and row["eager_ms"] == 2.0 and row["seed"] == 1
