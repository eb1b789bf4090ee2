"""Turns on a device among processes."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from judge_kit import silu_bias, silu_candidate

from sandbox.compile.outcome import Compiled
from sandbox.failures import Failed
from sandbox.judge import Judge
from sandbox.judge.race import Race
from sandbox.judge.session import Session
from sandbox.judge.sessions import Trial
from sandbox.judge.verify import QUICK, Checked
from sandbox.timing import device_lock as devicelock
from sandbox.timing import machine
from sandbox.timing.device_lock import DeviceLock
from sandbox.verdict import Baselines, Correct, Outcome

HOLD = """
import sys, time
from pathlib import Path
from sandbox.timing.device_lock import DeviceLock
with DeviceLock(Path(sys.argv[1])).turn():
    print("mine", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is killed."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout and process.stdout.readline() == "mine\n"
        yield process
        process.kill()


def take(lock: DeviceLock, seen: list[str], name: str, shared: bool = False) -> threading.Thread:
    def work() -> None:
        with lock.shared() if shared else lock.turn():
            seen.append(name)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_without_a_path_turns_begin_at_once_even_within_one_another() -> None:
    lock = DeviceLock(None)
    with lock.turn(), lock.turn():
        assert lock.waited_s == 0


def test_a_turn_within_a_turn_is_part_of_it_and_others_wait_for_its_end(tmp_path: Path) -> None:
    lock, seen = DeviceLock(tmp_path / "lock"), list[str]()
    with lock.turn():
        with lock.turn():
            other = take(lock, seen, "other")
        assert not seen
        seen.append("mine")
    other.join(60)
    assert seen == ["mine", "other"]


def test_a_process_that_is_killed_in_its_turn_gives_it_up(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    lock, seen = DeviceLock(tmp_path / "lock"), list[str]()
    waiting = take(lock, seen, "after")
    end = time.monotonic() + 60
    while lock.waited_s <= 0.1 and time.monotonic() < end:
        time.sleep(0.01)
    assert waiting.is_alive() and not seen and lock.waited_s > 0.1, "it counts while it goes on"
    holder.kill()
    waiting.join(30)
    assert seen == ["after"] and lock.waited_s > 0


def test_who_waits_comes_before_who_comes_back(tmp_path: Path) -> None:
    path, seen = tmp_path / "folder" / "lock", list[str]()
    mine = DeviceLock(path)
    with mine.turn():
        other = take(DeviceLock(path), seen, "other")
        while not _is_next(path):
            time.sleep(0.01)
    with mine.turn():
        seen.append("mine")
    other.join(30)
    assert seen == ["other", "mine"]


def test_a_turn_ends_with_an_exception(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    with pytest.raises(KeyboardInterrupt), lock.turn():
        raise KeyboardInterrupt
    with lock.turn():
        pass


def test_shared_turns_go_side_by_side_and_wait_for_who_has_the_device_alone(tmp_path: Path) -> None:
    path, seen = tmp_path / "lock", list[str]()
    with DeviceLock(path).shared():
        other = take(DeviceLock(path), seen, "beside", shared=True)
        other.join(30)
        assert seen == ["beside"]
        alone = take(DeviceLock(path), seen, "alone")
        while not _is_next(path):
            time.sleep(0.01)
        late = take(DeviceLock(path), seen, "late", shared=True)
        late.join(0.3)
        assert seen == ["beside"]
    alone.join(30)
    late.join(30)
    assert seen == ["beside", "alone", "late"]


def test_who_waits_to_share_the_device_is_let_in_by_the_first_who_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, shared, alone, shared, shared, in the order in which they came: the shared ones go in together."""
    path, seen = tmp_path / "lock", list[str]()
    inside = threading.Barrier(3)  # none of the three leaves before all are in
    led, at_once = list[int](), devicelock.lock_at_once

    def watched(descriptor: int, kind: int) -> bool:
        found = at_once(descriptor, kind)
        if kind == fcntl.LOCK_EX and not found:
            led.append(descriptor)
        return found

    def shares() -> None:
        with DeviceLock(path).shared():
            inside.wait(30)
            seen.append("shared")

    monkeypatch.setattr(devicelock, "lock_at_once", watched)
    with DeviceLock(path).turn():
        threads = [threading.Thread(target=shares, daemon=True)]
        threads[0].start()
        while not _is_next(path):
            time.sleep(0.01)
        alone = take(DeviceLock(path), seen, "alone")
        for _ in range(2):
            threads.append(threading.Thread(target=shares, daemon=True))
            threads[-1].start()
        while len(set(led)) < 2:
            time.sleep(0.01)
        assert not seen
    for thread in (*threads, alone):
        thread.join(30)
    assert seen == ["shared"] * 3 + ["alone"]


def test_who_comes_to_share_the_device_when_others_do_already_waits_for_who_wants_it_alone(
    tmp_path: Path,
) -> None:
    path, seen = tmp_path / "lock", list[str]()
    with DeviceLock(path).shared():
        alone = take(DeviceLock(path), seen, "alone")
        while not _is_next(path):
            time.sleep(0.01)
        late = [take(DeviceLock(path), seen, "late", shared=True) for _ in range(2)]
        late[0].join(0.3)
        assert not seen
    for thread in (alone, *late):
        thread.join(30)
    assert seen == ["alone", "late", "late"]


def test_the_device_cannot_be_had_alone_within_a_shared_turn(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    with lock.shared(), lock.shared(), pytest.raises(RuntimeError, match="cannot be had alone"):
        lock.turn().__enter__()
    with lock.turn(), lock.shared():
        pass


def test_a_check_that_found_no_memory_beside_others_is_made_once_more_alone(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox.judge import checks

    lock, held = DeviceLock(judge.settings.scratch / "lock"), list[int]()
    answers = [
        Failed("eager mode", "OutOfMemoryError: CUDA out of memory. Tried to allocate\nmore")
    ]
    answers.append(Failed("eager mode", "RuntimeError: another reason"))

    def check(*_: object) -> Checked:
        held.append(lock._thread.held)
        return Checked(answers[len(held) - 1])

    def load(*_: object) -> Session:
        loaded_in.append(lock._thread.held)
        return session

    task, loaded_in = silu_bias(), list[int]()
    session = Session(task, {}, judge.settings.timeouts)
    monkeypatch.setattr(judge.sessions, "load", load)
    monkeypatch.setattr(judge.device, "lock", lock)
    monkeypatch.setattr(judge.device, "target", "cuda")
    monkeypatch.setattr(checks, "check_candidate", check)
    monkeypatch.setattr(machine, "release_memory", lambda target: None)
    trial = Trial(task, silu_candidate(task))
    found = checks.check_trial(judge.sessions, session, judge.roles.scratch, trial, QUICK)
    assert held == [fcntl.LOCK_SH, fcntl.LOCK_EX] and loaded_in == [fcntl.LOCK_EX]
    assert found.outcome is answers[1]


def test_what_measures_the_ceilings_is_loaded_in_nobodys_turn(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, held = DeviceLock(tmp_path / "lock"), list[tuple[str, int | None]]()

    def note(what: str, answer: object = None) -> Callable[..., Any]:
        def noted(*_: object) -> object:
            held.append((what, getattr(lock._thread, "held", None)))
            return answer

        return noted

    known = Baselines(2.0, 1.0, 0.1, 0.5)
    workers = {"baseline": None, "candidate": None, "session": SimpleNamespace(frugal=False)}
    race = SimpleNamespace(
        known=None, equip=note("equip"), baselines=note("time", known), **workers
    )
    monkeypatch.setattr(judge.device, "lock", lock)
    monkeypatch.setattr(judge.device, "_ceilings", None)
    monkeypatch.setattr(machine, "load_for_ceilings", note("load"))
    assert judge.measurements.baselines(cast(Race, race)) is known
    assert held == [("load", None), ("equip", fcntl.LOCK_SH), ("time", fcntl.LOCK_EX)]


def test_a_judge_compiles_at_any_time_and_runs_in_its_turn(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, found = DeviceLock(tmp_path / "lock"), list[Outcome]()
    monkeypatch.setattr(judge.device, "lock", lock)
    task = silu_bias()
    candidate = silu_candidate(task)
    with DeviceLock(tmp_path / "lock").turn():
        assert isinstance(judge.compile(candidate), Compiled)
        thread = threading.Thread(target=lambda: found.append(judge.verify(task, candidate)))
        thread.start()
        while not _is_next(tmp_path / "lock"):
            time.sleep(0.01)
        assert not found
    thread.join(60)
    assert isinstance(found[0], Correct) and judge.waited_s > 0


def _is_next(path: Path) -> bool:
    """Whether somebody holds the turnstile."""
    with path.with_name(f"{path.name}.next").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
