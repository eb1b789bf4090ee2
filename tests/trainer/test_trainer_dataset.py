"""The journal goes on where it was cut; the file and its card say what is in it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import command
from trainer.synthesis import pace, run
from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.task import Composed, Wishes
from trainer.synthesis.dataset import journal
from trainer.synthesis.dataset.rows import row_of, split_of
from trainer.synthesis.machine import Machine
from trainer.synthesis.merge import Merged, NotMerged, merge

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


def test_what_each_run_came_to_is_noted_beside_the_report(
    tmp_path: Path, looked_at: list[int]
) -> None:
    pytest.importorskip("pyarrow")
    made(tmp_path, 4)
    made(tmp_path, 9)
    runs = pace.runs_in(tmp_path / "report.json")
    entries = journal.lines((tmp_path / journal.NAME).read_bytes())[1:]
    late = len(entries) - sum(run["looked_at"] for run in runs)
    assert len(runs) == 2 and 0 <= late <= 4, "both jobs may decide one more while a run ends"
    assert all(0 < run["passed"] < run["looked_at"] and run["seconds"] >= 0 for run in runs)
    assert [run["jobs"] for run in runs] == [2, 2]
    (tmp_path / "report.json").write_text("[]")
    assert pace.runs_in(tmp_path / "report.json") == []


def test_the_rate_counts_a_cards_seconds_once() -> None:
    def ran(began: float, seconds: float, card: str, passed: int) -> pace.Run:
        facts = {"jobs": 5, "cores": 32, "device_name": "H", "looked_at": 2 * passed}
        return {"began": began, "seconds": seconds, "card": card, "passed": passed, **facts}

    beside = [ran(0, 100, "0", 10), ran(10, 80, "0", 10), ran(0, 100, "1", 20)]
    found = pace.rate_of([*beside, ran(150, 50, "0", 10)])
    assert (found["card_seconds"], found["passed"], found["looked_at"]) == (250.0, 50, 100)
    assert (found["tasks_a_card_hour"], found["cores_a_card"]) == (720, 32.0)
    assert pace.rate_of(beside)["cores_a_card"] == 16.0
    with pytest.raises(ValueError, match="no run"):
        pace.rate_of([])


def test_the_card_of_a_folder_tells_of_each_set_in_it(tmp_path: Path, looked_at: list[int]) -> None:
    pytest.importorskip("pyarrow")
    yaml = pytest.importorskip("yaml")
    made(tmp_path / "a", 4)
    of_a_gpu = replace(settings(tmp_path / "a", 9), name="h9", first=1)
    (tmp_path / "a" / "journal.jsonl").unlink()
    (tmp_path / "a" / "foreign.parquet").write_bytes(b"no set of ours")
    run.run(of_a_gpu, RuleComposer(Wishes.of("cpu")), MACHINE, lambda tally: None)
    card = (tmp_path / "a" / "README.md").read_text()
    header = yaml.safe_load(card.split("---\n")[1])
    files = {c["config_name"]: c["data_files"][0]["path"] for c in header["configs"]}
    assert files == {"h9": "ops-h9.parquet", "cpu": "ops-cpu.parquet"}
    assert [c["config_name"] for c in header["configs"] if c.get("default")] == ["h9"]
    counts = {c["config_name"]: c["splits"][0]["num_examples"] for c in header["dataset_info"]}
    assert counts == {"h9": 9, "cpu": 4}
    assert card.count("### Candidates dropped") == 2 and "| stochastic |" in card
    assert "13 tasks" in card


def test_the_pieces_of_a_set_make_the_set_that_one_run_makes(
    tmp_path: Path, looked_at: list[int]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    composer = RuleComposer(Wishes.of("cpu"))
    made(tmp_path / "whole", 30)
    seen = []
    for number in (1, 2, 3):
        looked_at.clear()
        part = replace(settings(tmp_path / str(number), 30), part=(number, 3))
        assert isinstance(run.run(part, composer, MACHINE, lambda tally: None), run.Tally)
        assert {seed % 3 for seed in looked_at} == {number - 1}
        seen.append(sorted(p.name for p in (tmp_path / str(number)).iterdir()))
    assert seen == [["journal.jsonl", "report.json"]] * 3
    folders = [tmp_path / name for name in ("3", "1", "2")]
    words = ["merge", *map(str, folders), "--count", "30", "--out", str(tmp_path / "m.parquet")]
    assert command.main(words) == 0
    rows = [
        parquet.read_table(tmp_path / name).to_pylist()
        for name in ("m.parquet", "whole/ops-cpu.parquet")
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 30
    assert (tmp_path / "README.md").exists()
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert [run["jobs"] for run in runs] == [2, 2, 2] and sum(run["passed"] for run in runs) >= 30


def test_pieces_that_end_early_or_do_not_belong_together_are_said(
    tmp_path: Path, looked_at: list[int]
) -> None:
    composer = RuleComposer(Wishes.of("cpu"))
    for number in (1, 2):
        part = replace(settings(tmp_path / str(number), 20), part=(number, 2), jobs=1)  # in order
        run.run(part, composer, MACHINE, lambda tally: None)
    text = (tmp_path / "2" / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "2" / "journal.jsonl").write_text("".join(text[:4]) + '{"cut')
    found = merge([tmp_path / "1", tmp_path / "2"], 20, ())
    assert isinstance(found, Merged) and 0 < len(found.rows) < 20
    assert "piece 2/2 has to go on at seed number" in found.lacking
    alone = merge([tmp_path / "1"], 20, ())
    assert isinstance(alone, Merged) and alone.lacking == "piece 2/2 is not there"
    twice = merge([tmp_path / "1", tmp_path / "1"], 20, ())
    assert isinstance(twice, NotMerged) and "the same piece" in twice.reason
    text[0] = text[0].replace('"torch": "2"', '"torch": "3"')
    (tmp_path / "2" / "journal.jsonl").write_text("".join(text))
    other = merge([tmp_path / "1", tmp_path / "2"], 20, ())
    assert isinstance(other, NotMerged) and "torch" in other.reason


def test_a_run_ends_when_its_time_is_over_and_remembers_nothing_that_it_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, over = threading.Event(), threading.Event()
    now = [0.0]

    def decided(seed: int, *_: Any) -> dict[str, Any]:
        if seed == 4:
            later.set()  # the other thread is at 2, so this one has kept 3
        if seed in (2, 4):
            over.wait(300)  # until the run has ended
        return {"seed": seed, "status": "dropped", "filter": "does not run", "reason": "no"}

    def tell(tally: run.Tally) -> None:
        if tally.looked_at == 2:  # the next that the run waits for is 2
            assert later.wait(300)
            now[0] = 599.5

    monkeypatch.setattr(run, "decided", decided)
    # The time goes on only once all is decided that may be: how long that takes is the machine's affair.
    clock = SimpleNamespace(time=time.time, monotonic=lambda: now[0])
    monkeypatch.setattr(run, "time", clock)
    limited = replace(settings(tmp_path, 5), seconds=600.0)
    found = run.run(limited, RuleComposer(Wishes.of("cpu")), MACHINE, tell)
    over.set()
    assert isinstance(found, run.Tally) and found.looked_at == 2
    kept = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()[1:]]
    seeds = {entry["seed"] for entry in kept}
    assert seeds == {0, 1, 3}


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
