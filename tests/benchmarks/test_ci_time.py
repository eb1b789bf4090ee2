"""The benchmark of continuous integration, with steps that are none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import ci_time
from benchmarks.ci_time import Seconds, run, steps, summarise

TESTS = """
def test_one(): pass
def test_two(): assert False
"""


def test_steps_are_those_of_the_script() -> None:
    assert "make check" in steps() and len(steps()) > 1
    assert all(step.startswith("make ") for step in steps())


def test_a_run_of_pytest_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    words = "-m pytest -q -p no:cacheprovider -p no:xdist --override-ini=addopts= --rootdir"
    found = run(f"{sys.executable} {words} {tmp_path} {tmp_path}/test_it.py")
    assert found["exit_status"] == 1 and found["seconds"] > 0 and found["cpu_seconds"] > 0
    assert found["tests"] == {"passed": 1, "failed": 1}
    assert list(found["files"]) == ["test_it.py"]


def test_what_is_no_pytest_has_no_tests() -> None:
    found = run("true")
    assert (found["exit_status"], found["tests"], found["files"]) == (0, {}, {})


def test_the_summary_compares() -> None:
    before = {"steps": {"all": {"seconds": 3000.0}}}
    after = {
        "steps": {
            "a": {"seconds": 500.0, "files": {"x.py": 4.0}},
            "b": {"seconds": 1000.0, "files": {"x.py": 1.0, "y.py": 9.0}},
        }
    }
    assert summarise({"before": before}) == {"seconds": {"before": 3000}}
    found = summarise({"before": before, "after": after})
    assert found["seconds"] == {"before": 3000, "after": 1500} and found["after_of_before"] == 0.5
    assert found["slowest_after"] == {"y.py": 9.0, "x.py": 5.0}


def test_workers_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registered: list[Seconds] = []

    class Config:
        workerinput: dict[str, str]

        class pluginmanager:  # noqa: N801
            register = registered.append

    monkeypatch.setenv(ci_time.FILE_VARIABLE, str(tmp_path / "seconds"))
    config = Config()
    config.workerinput = {}
    ci_time.pytest_configure(config)
    assert not registered
    ci_time.pytest_configure(Config())
    registered[0].pytest_sessionfinish()
    assert json.loads((tmp_path / "seconds").read_text()) == {"files": {}, "outcomes": {}}
