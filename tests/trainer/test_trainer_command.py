"""The command says what it would make, and looks at sets of others."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from trainer import command
from trainer.synthesis import check_set, run
from trainer.synthesis.check_set import RowsComposer, ops_of, rows_of
from trainer.synthesis.compose.rules import RuleComposer
from trainer.synthesis.compose.task import Composed, NotComposed, Wishes
from trainer.synthesis.machine import Machine, NoDevice
from trainer.synthesis.probe.request import CROWDED

NAMES = {"device": "cpu", "device_name": "NVIDIA H100 80GB HBM3", "torch": "2", "transformers": ""}
MACHINE = Machine(NAMES, {"float32": {}}, 1 << 35, 4)


def test_a_dry_run_says_what_it_would_make_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "set"
    words = ["synth", "--count", "40", "--out", str(out), "--dry-run", "--device", "cpu"]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    assert "families" in said and "hours" in said and not out.exists()


def test_what_is_wrong_with_the_arguments_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("trainer.synthesis.machine.look", lambda device: NoDevice("no device"))
    base = ["synth", "--count", "1", "--out", str(tmp_path)]
    assert command.main(base) == command.USAGE
    assert capsys.readouterr().err == "cuda-agent-train: no device\n"
    assert command.main([*base, "--composer", "openai"]) == command.USAGE
    assert "--model" in capsys.readouterr().err
    monkeypatch.setattr("trainer.synthesis.machine.look", lambda device: MACHINE)
    assert command.main([*base, "--exclude", str(tmp_path / "none")]) == command.USAGE
    assert "is no folder" in capsys.readouterr().err


def test_tables_that_could_not_be_written_are_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["measure", str(tmp_path / "none"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert command.main(words) == command.USAGE
    assert "pyarrow is not installed" in capsys.readouterr().err


def test_an_interruption_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def decided(seed: int, *_: Any) -> dict[str, Any]:
        return {"seed": seed, "status": "dropped", "filter": "stochastic", "reason": "it draws"}

    def tell(tally: run.Tally) -> None:
        if tally.looked_at == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "decided", decided)
    settings = run.Settings(tmp_path, 5, 0, 1, 10.0, Wishes.of("cpu"))
    with pytest.raises(KeyboardInterrupt):
        run.run(settings, RuleComposer(settings.wishes), MACHINE, tell)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    seeds = [json.loads(line)["seed"] for line in lines[1:]]
    assert seeds[:3] == [0, 1, 2]  # and what was under way


def test_a_task_that_our_own_code_fails_on_costs_that_task_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decided(seed: int, *_: Any) -> dict[str, Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(run, "decided", decided)
    settings = run.Settings(tmp_path, 1, 0, 1, 10.0, Wishes.of("cpu"))
    composer = RowsComposer([{}] * 4)
    found = run.run(settings, composer, MACHINE, lambda tally: None, last=4)
    assert isinstance(found, run.Tally) and found.dropped == {"error of ours": 4}


def test_a_task_that_others_left_no_memory_for_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"failed": "OutOfMemoryError: CUDA out of memory", "stage": CROWDED}
    monkeypatch.setattr(run.Prober, "probe", lambda self, request: dict(facts))
    settings = run.Settings(tmp_path, 1, 0, 1, 60.0, Wishes.of("cpu"))
    told = run.run(settings, RuleComposer(Wishes.of("cpu")), MACHINE, lambda tally: None, last=4)
    assert isinstance(told, run.Tally)
    assert told.dropped["no room beside others"] >= 3
    kept = (tmp_path / "journal.jsonl").read_text()
    assert "no room" not in kept and "identity" in kept


def test_a_task_that_takes_long_holds_no_others_up(tmp_path: Path) -> None:
    settings = run.Settings(tmp_path, 100, 0, 2, 60.0, Wishes.of("cpu"))
    others, first_may_end = [], threading.Event()

    def work(seed: int) -> dict[str, Any]:
        if seed == 0:
            assert first_may_end.wait(60.0)
        else:
            others.append(seed)
            if len(others) == 40:
                first_may_end.set()
        return {"seed": seed}

    found = [entry["seed"] for entry in run._in_order(settings, work, last=60)]
    assert found == list(range(60))


def test_a_set_of_others_is_read_from_its_three_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"ops": '["torch.relu"]', "data_source": "torch#1", "code": f"class Model: {n}"}
        for n in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "set.parquet")
    found = rows_of(tmp_path / "set.parquet")
    assert found == rows
    seen: list[str] = []

    def decided(seed: int, composer: Any, *_: Any) -> dict[str, Any]:
        task = composer.compose(seed, 0)
        assert isinstance(task, Composed) and task.ops == ("torch.relu",)
        seen.append(task.code)
        return {"seed": seed, "status": "dropped", "filter": "does not run", "reason": "no"}

    monkeypatch.setattr(run, "decided", decided)
    settings = run.Settings(tmp_path / "out", 3, 0, 1, 10.0, Wishes.of("cpu"))
    report = check_set.check(settings, rows, MACHINE, lambda tally: None)
    assert isinstance(report, run.Tally) and report.dropped == {"does not run": 3}
    assert seen == [row["code"] for row in rows]


def test_files_that_are_no_such_set_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "text.parquet").write_text("no")
    assert "is no Parquet file" in str(rows_of(tmp_path / "text.parquet"))
    assert "there is no file" in str(rows_of(tmp_path / "none"))
    assert ops_of("not json") == () and ops_of(["a"]) == ("a",)
    assert isinstance(RowsComposer([]).compose(0, 0), NotComposed)


def test_the_file_has_the_name_of_the_gpu() -> None:
    assert run.short_name("cuda", MACHINE) == "h100"
    assert run.short_name("cpu", MACHINE) == "cpu"
    assert run.jobs_of("cpu", MACHINE) == 1 and run.jobs_of("cuda", MACHINE) == 4
