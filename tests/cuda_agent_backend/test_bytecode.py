"""Where child processes find and keep bytecode, if the installation has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent_backend.runtime import bytecode
from cuda_agent_backend.runtime.bytecode import FORBIDS
from cuda_agent_backend.runtime.child_process import child_environment
from sandbox.workers.settings import WorkerSettings
from sandbox.workers.starter import ForkServer
from sandbox.workers.supervisor import WorkerProcess
from sandbox.workers.worker import BYTECODE


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A module that nobody has compiled."""
    path = tmp_path / "site" / "fresh_module.py"
    path.parent.mkdir()
    path.write_text("VALUE = 7\n")
    return path


def imported(module: Path, variables: dict[str, str]) -> None:
    environment = {**os.environ, FORBIDS: "1", "PYTHONPATH": str(module.parent), **variables}
    words = [sys.executable, "-c", f"import {module.stem}"]
    subprocess.run(words, env=environment, check=True)


def test_children_keep_bytecode_in_the_folder_where_there_is_none(
    tmp_path: Path, module: Path
) -> None:
    folder = tmp_path / "cache" / "bytecode"
    imported(module, bytecode.variables(folder, str(module)))
    assert [path.name.split(".")[0] for path in folder.rglob("fresh*.pyc")] == [module.stem]
    assert [path.name for path in module.parent.rglob("*")] == [module.name]


def test_an_installation_with_bytecode_keeps_its_own(tmp_path: Path, module: Path) -> None:
    imported(module, {FORBIDS: ""})
    assert list(module.parent.rglob("*.pyc"))
    assert bytecode.variables(tmp_path / "bytecode", str(module)) == {}
    assert not (tmp_path / "bytecode").exists()


def test_a_folder_that_the_user_has_named_stays(
    tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "own"))
    assert bytecode.variables(tmp_path / "bytecode", str(module)) == {}


def test_a_folder_that_cannot_be_made_changes_nothing(tmp_path: Path, module: Path) -> None:
    (tmp_path / "file").write_text("")
    assert bytecode.variables(tmp_path / "file" / "bytecode", str(module)) == {}


def test_workers_are_forked_from_what_was_imported_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bytecode"
    monkeypatch.setenv(BYTECODE, str(folder))
    hello = {"target": "cpu", "threads": 1, "flags": {}, "inductor": {}, "native": ""}
    server = ForkServer(tmp_path / "server")
    worker = WorkerProcess(WorkerSettings("candidate", tmp_path / "worker", 1, hello), server)
    try:
        assert worker.ready() is None, worker.log_tail()
    finally:
        worker.stop()
        server.stop()
    assert list(folder.rglob("loop.*.pyc"))
    assert not list((tmp_path / "worker").rglob("*.pyc"))


def test_children_are_told_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(bytecode, "_source_of", lambda name: str(tmp_path / f"{name}.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = child_environment()
    assert found[BYTECODE] == str(tmp_path / "cuda_agent" / "bytecode")
    assert found[FORBIDS] == ""
