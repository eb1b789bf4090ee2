"""Starting, asking, losing and stopping a worker process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.processes import family, gone

from sandbox.failures import Crashed, Failed, TimedOut
from sandbox.workers.settings import WorkerSettings, environment
from sandbox.workers.supervisor import Clock, WorkerProcess

HELLO = {"target": "cpu", "threads": 1, "flags": {}, "inductor": {}, "native": ""}


@pytest.fixture(scope="module")
def shared_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    made = WorkerProcess(WorkerSettings("candidate", tmp_path_factory.mktemp("worker"), 1, HELLO))
    yield made
    made.stop()


@pytest.fixture
def worker(shared_worker: WorkerProcess) -> WorkerProcess:
    """A worker that is ready; started again if a test has ended it."""
    assert shared_worker.ready() is None
    return shared_worker


def test_a_worker_says_what_it_is(worker: WorkerProcess) -> None:
    assert worker.facts["torch"]


def test_an_error_is_a_value_and_the_worker_lives_on(worker: WorkerProcess) -> None:
    generation = worker.generation
    found = worker.ask("trial", {"do": "no such thing"}, 5)
    assert isinstance(found, Failed)
    assert "no such thing" in found.reason
    assert worker.ask("trial", {"do": "forget"}, 5) == {}
    assert worker.generation == generation


def test_a_run_of_nothing_is_timed(worker: WorkerProcess) -> None:
    from sandbox.workers.protocol import NO_SLOT
    from sandbox.workers.supervisor import CallTime

    clocks: tuple[Clock, ...] = ("device", "wall")
    for clock in clocks:
        found = worker.run(NO_SLOT, 0, 5, clock)
        assert isinstance(found, CallTime)
        assert found.seconds > 0 and not found.late


def test_a_command_may_be_sent_first_and_its_answer_received_later(worker: WorkerProcess) -> None:
    assert worker.post("trial", {"do": "forget"}) is None
    assert worker.receive("trial", 5) == {}
    assert worker.ask("trial", {"do": "forget"}, 5) == {}


def test_a_run_that_raises_is_a_crash_of_the_candidate(worker: WorkerProcess) -> None:
    found = worker.run(7, 0, 5)
    assert isinstance(found, Crashed)
    assert "KeyError" in found.how


def test_a_killed_worker_is_a_value_with_the_signal_and_the_next_one_works(
    worker: WorkerProcess,
) -> None:
    assert worker.pid is not None
    pids = family(worker.pid)
    os.kill(pids[-1], signal.SIGSEGV)
    found = worker.ask("trial", {"do": "forget"}, 5)
    assert isinstance(found, Crashed)
    assert found.how == "SIGSEGV"
    assert gone(pids)
    assert worker.ask("trial", {"do": "forget"}, 60) == {}


def test_a_silent_worker_times_out_and_is_killed(worker: WorkerProcess) -> None:
    assert worker.pid is not None
    pids = family(worker.pid)
    os.kill(pids[-1], signal.SIGSTOP)
    found = worker.ask("trial", {"do": "forget"}, 0.2)
    assert isinstance(found, TimedOut)
    assert found.reason == "no answer from trial within 0.2 s"
    assert gone(pids)


def test_a_worker_is_interrupted_from_another_thread_and_the_next_one_works(
    worker: WorkerProcess,
) -> None:
    assert worker.pid is not None
    pids = family(worker.pid)
    os.kill(pids[-1], signal.SIGSTOP)  # as one that is busy
    timer = threading.Timer(0.2, worker.interrupt)
    timer.start()
    found = worker.ask("trial", {"do": "forget"}, 60)
    timer.join()
    worker.interrupt()
    assert isinstance(found, Crashed) and gone(pids)
    worker.interrupt()
    worker.ready()
    assert worker.ask("trial", {"do": "forget"}, 60) == {}


def test_stopping_leaves_no_process(worker: WorkerProcess) -> None:
    assert worker.pid is not None and worker._server.process_id is not None
    pids = [*family(worker.pid), worker._server.process_id]
    assert len(pids) >= 2
    worker.stop()
    assert gone(pids)
    assert worker.stop() is None


JUDGE_THAT_DIES = """
import os, sys
from pathlib import Path
from sandbox.workers.supervisor import WorkerProcess, WorkerSettings
hello = {"target": "cpu", "threads": 1, "flags": {}, "inductor": {}, "native": ""}
worker = WorkerProcess(WorkerSettings("candidate", Path(sys.argv[1]), 1, hello))
worker.launch()
if sys.argv[2] == "ready":
    assert worker.ready() is None
    print(worker.pid, end=" ")
print(worker._server.process_id, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("when", ["ready", "importing"])
def test_workers_and_servers_end_when_the_judge_is_killed(tmp_path: Path, when: str) -> None:
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", JUDGE_THAT_DIES, str(tmp_path), when],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert found.returncode == -9, found.stderr
    assert gone([int(pid) for pid in found.stdout.split()], seconds=60)


def test_the_environment_is_allow_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("LD_PRELOAD", "")
    found = environment(WorkerSettings("candidate", tmp_path, 3, HELLO))
    assert "SECRET_TOKEN" not in found
    assert "LD_PRELOAD" not in found
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["HOME"] == str(tmp_path / "scratch")


def test_only_where_threads_are_timed_they_stay_on_their_cores(tmp_path: Path) -> None:
    found = {
        target: environment(WorkerSettings("candidate", tmp_path, 3, {**HELLO, "target": target}))
        for target in ("cpu", "cuda")
    }
    assert found["cpu"]["OMP_PROC_BIND"] == "close"
    assert "OMP_PROC_BIND" not in found["cuda"]  # or all processes would share the first core


def test_temporary_folders_have_absolute_names_that_another_user_may_use(tmp_path: Path) -> None:
    found = environment(WorkerSettings("candidate", tmp_path, 3, HELLO))
    assert Path(found["TMPDIR"]).is_absolute()
    assert found["TMP"] == "."


def test_a_worker_is_started_again_from_the_same_server(worker: WorkerProcess) -> None:
    server, first = worker._server._process, worker.pid
    worker.renew()
    assert worker.ready() is None
    assert worker.pid != first
    assert worker._server._process is server


def test_one_that_cannot_serve_says_why_and_does_not_keep_anyone_waiting(tmp_path: Path) -> None:
    made = WorkerProcess(WorkerSettings("candidate", tmp_path, 1, {**HELLO, "flags": {"no": 1}}))
    try:
        for _ in range(2):
            found = made.ready()
            assert isinstance(found, Failed)
            assert found.stage == "start"
            assert not made.running
    finally:
        made.stop()


def test_stopping_one_that_is_still_importing_takes_no_time(tmp_path: Path) -> None:
    made = WorkerProcess(WorkerSettings("candidate", tmp_path, 1, HELLO))
    made.launch()
    server = made._server.process_id
    assert server is not None
    made.stop()
    assert gone([server])
    assert made.pid is None


def test_a_server_that_died_is_started_again(worker: WorkerProcess) -> None:
    server = worker._server._process
    assert server is not None
    server.kill()
    server.wait()
    assert worker.ask("trial", {"do": "forget"}, 5) == {}  # its workers live on
    worker.renew()
    assert worker.ready() is None


NOT_ASLEEP = "int cuDeviceGetCount(int* count) { *count = 1; return 0; }"


def test_where_cuda_is_awake_a_worker_loads_its_program_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has woken CUDA's driver cannot be forked. With a stand-in for the driver."""
    (tmp_path / "driver.c").write_text(NOT_ASLEEP)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", str(tmp_path / "driver.c"), "-o", str(library)], check=True
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    made = WorkerProcess(WorkerSettings("candidate", tmp_path / "worker", 1, HELLO))
    try:
        assert made.ready() is None
        pid = made.pid
        assert pid is not None
        assert b"sandbox.workers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    finally:
        made.stop()
