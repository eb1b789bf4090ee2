"""The page of results says what the committed files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results_page
from trainer.rivals.registry import CHANCE, TODAY


def test_the_page_is_what_the_files_say() -> None:
    assert results_page.PAGE.read_text(encoding="utf-8") == results_page.page()


def test_another_figure_in_a_file_gives_another_page(tmp_path: Path) -> None:
    for name in {name for row in results_page.ROWS for name in row.files if not row.waits}:
        text = (results_page.FOLDER / f"{name}.json").read_text(encoding="utf-8")
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    before = results_page.page(tmp_path)
    path = tmp_path / "cpu-models.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    found["summary"]["slowest_speedup"] = 0.5
    path.write_text(json.dumps(found), encoding="utf-8")
    assert "slowest 0.50" in results_page.page(tmp_path) and "slowest 0.50" not in before
    assert "training tasks" not in before
    replay = {"tasks": 5, "families": 4, "replayed": 5, "regions": 9, "covered": 7}
    check = {"drawn": 3, "rows_with_a_fault": 0}
    made = {"summary": {"ops-cpu": {**replay, **check}, "ops-h100": check}}
    (tmp_path / "synthesis.json").write_text(json.dumps(made), encoding="utf-8")
    said = "ops-cpu: 5 of 5 tasks of 4 families replay, 7 of 9 regions covered"
    assert said in results_page.page(tmp_path)
    assert "ops-h100: 0 of 3 drawn at random have a fault" in results_page.page(tmp_path)


def test_what_is_awaited_has_a_line_once_it_is_there(tmp_path: Path) -> None:
    for file in results_page.FOLDER.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    none = {"known": 9, "beyond": [], "worst": 0.8}
    rows = {"correct": 9, "tasks": 10, "failed_for_memory": ["x"], "slower_than_inductor": []}
    rows |= {"geomean_over_inductor": {"all": 1.234}, "card_seconds_for_each_task": 9.6}
    rows |= {"memory": {"search": none, "measure": {**none, "beyond": ["y"]}}}
    group = {"models": 17, "geomean": 1.1, "slower": [], "less_accurate": ["z"], "more_memory": []}
    group["undecided"] = ["w", "x"]
    found = {"h100-large": {"table": rows}, "h100-models": {"groups": {"bfloat16 x": group}}}
    held = {"schedules": 90, "tables": 9, "families": 3, "complete": 2}
    slow = {CHANCE: 1.2, "order": 1.3, TODAY: 1.5, "ranker": 1.1}
    mean = {name: {"value": v, "low": v - 0.1, "high": v + 0.1} for name, v in slow.items()}
    family = {name: {"at": {"3": {"slowdown": mean[name]}}} for name in slow}
    found |= {"tables": {"tables": held}, "arena": {"splits": {"family": family}}}
    for name, summary in found.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"summary": summary}), encoding="utf-8")
    page = results_page.page(tmp_path)
    assert "90 schedules in 9 tables of 3 families; 2 tables complete" in page
    assert f"ranker 1.10 (1.00 to 1.20), {TODAY} 1.50 (1.40 to 1.60), {CHANCE} 1.20" in page
    assert "9 of 10 correct, 1 failed for memory, 0 slower; over Inductor 1.23; 1 beyond" in page
    assert (
        "bfloat16 x: 17 models, 1.10, 0 slower, 1 less accurate, 0 with more memory, 2 undecided"
        in page
    )


def test_all_that_went_wrong_in_the_conformance_run_is_said() -> None:
    summary = {"cases": 7, "operators": 2, "share_of_tasks_covered": 0.5, "wrong": 0, "crash": 0}
    summary |= {"does_not_compile": 0, "hangs": 0, "raises": 0, "bug": 0}

    def said(**more: int) -> str:
        return results_page.conformance([{"targets": {"cpu": {"summary": {**summary, **more}}}}])

    good = "cpu: 7 cases of 2 operators, 0 wrong, 0 do not compile, 0 crash; 50 % of tasks covered"
    assert said() == good
    bad = "0 crash, 3 hang, 2 raise, 1 with a bug;"
    assert said(hangs=3, raises=2, bug=1) == good.replace("0 crash;", bad)
    assert said(planned=9) == good.replace("7 cases", "7 of 9 cases")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"h100-practice-cold\.json"):
        results_page.page(tmp_path)
