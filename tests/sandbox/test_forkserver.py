"""What a worker may not inherit from the server that it is forked from."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_kit import silu_bias
from kit.processes import alive, gone, text_in
from torch._inductor import codecache

from sandbox.scratch import folder
from sandbox.workers.fork_server import ends_with, keep_headers
from sandbox.workers.inductor_store import CACHE, own_headers
from sandbox.workers.settings import WorkerSettings
from sandbox.workers.supervisor import WorkerProcess


def test_each_worker_keeps_precompiled_headers_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor keeps them where temporary files were when it was imported."""
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, "/elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keep_headers()
    assert Path(codecache._HEADER_DIR).is_relative_to(tmp_path)
    assert Path(codecache._HEADER_LOCK_DIR).parent == Path(codecache._HEADER_DIR)


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """Of Inductor, this process's, empty at first."""
    with pytest.MonkeyPatch.context() as patch, folder("cache") as name:
        patch.setenv(CACHE, name)
        yield Path(name)


@pytest.fixture(scope="module")
def baseline(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    hello = {"target": "cpu", "threads": 1, "flags": {}, "inductor": {}, "native": ""}
    made = WorkerProcess(WorkerSettings("baseline", tmp_path_factory.mktemp("worker"), 1, hello))
    yield made
    made.stop()


def checks(place: Path) -> list[Path]:
    """What was compiled to find out which instructions there are."""
    return sorted(
        file.with_suffix(".so")
        for file in place.rglob("*.cpp")
        if "_chk_kernel" in file.read_text(errors="replace")
    )


def test_instructions_are_checked_once_in_the_cache_of_the_judge_and_in_no_worker(
    baseline: WorkerProcess, cache: Path
) -> None:
    compile_silu = {"do": "prepare", "slot": 1, "mode": "inductor", "task": silu_bias().to_json()}
    assert baseline.ask("prepare", compile_silu, 300.0) == {}
    made = {file: file.stat().st_mtime_ns for file in checks(cache)}
    assert made  # the libraries are there, or `stat` would have raised
    baseline.renew()
    assert baseline.ask("prepare", compile_silu, 300.0) == {}
    assert {file: file.stat().st_mtime_ns for file in checks(cache)} == made
    own = baseline.settings.scratch
    assert list(own.rglob("*.cpp")) and not checks(own)


def test_a_worker_compiles_its_first_tasks_without_a_header(baseline: WorkerProcess) -> None:
    compile_silu = {"do": "prepare", "slot": 1, "mode": "inductor", "task": silu_bias().to_json()}
    assert baseline.ask("prepare", compile_silu, 300.0) == {}
    known = {made.name for made in own_headers().rglob("*.gch")}
    assert {made.name for made in baseline.settings.scratch.rglob("*.gch")} <= known


OWNED = """
import os, socket, subprocess, sys
from sandbox.workers.fork_server import ends_with
requests = socket.socket(fileno=int(sys.argv[1]))
with ends_with(requests):
    program = subprocess.Popen(["sleep", "600"])
    print(program.pid, flush=True)
    program.wait()
"""


def test_what_a_server_runs_ends_with_its_owner() -> None:
    """As where its owner is killed while compilers work for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-c", OWNED, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    theirs.close()
    assert server.stdout is not None
    program = int(server.stdout.readline())
    ours.close()
    assert server.wait(timeout=60) == -signal.SIGKILL
    assert gone([program])
    server.stdout.close()


def test_a_server_goes_on_without_a_thread_once_it_is_done() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = set(threading.enumerate())  # those of earlier tests may end meanwhile
    with ours, theirs, ends_with(theirs):
        assert len(set(threading.enumerate()) - before) == 1
    assert set(threading.enumerate()) <= before


def test_what_checks_leave_among_temporary_files_is_gone(
    baseline: WorkerProcess,
) -> None:
    assert baseline.ready() is None
    assert not list(baseline.settings.folder.glob("compiling-*"))


HANGING = """#!/bin/sh
case "$*" in
  *_CxxBuild*|*.cpp*) echo $$ >> "{pids}"; exec sleep 300;;
esac
exec g++ "$@"
"""


def test_a_server_ends_with_the_compilers_that_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, compiler = tmp_path / "pids", tmp_path / "c++"
    compiler.write_text(HANGING.format(pids=pids))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    hello = {"target": "cpu", "threads": 1, "flags": {}, "inductor": {}, "native": ""}
    worker = WorkerProcess(WorkerSettings("baseline", tmp_path / "worker", 1, hello))
    worker.launch()
    try:
        compilers = [int(line) for line in text_in(pids).split()]
        assert all(alive(pid) for pid in compilers)
    finally:
        worker.stop()
    assert gone(compilers)


def test_the_servers_home_is_no_workers(baseline: WorkerProcess) -> None:
    assert baseline.ready() is None
    server = baseline._server
    told = Path(f"/proc/{server.process_id}/environ").read_text().split("\0")
    found = dict(line.split("=", 1) for line in told if "=" in line)
    assert found["HOME"] == str(server.folder) != str(baseline.settings.scratch)
    assert found["PYTHONNOUSERSITE"] == "1"
