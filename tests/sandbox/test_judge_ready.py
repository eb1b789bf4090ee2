"""What a judgement needs is compiled in the candidate worker beside profiles, and nobody speaks to it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.failures import CompileFailed
from sandbox.judge import Judge
from sandbox.judge.judgement import Judgement
from sandbox.judge.settings import JudgeSettings


class Session:
    """Takes its time to make ready."""

    def __init__(self) -> None:
        self.readied = False
        self.asked: list[Any] = []
        self.may_end = threading.Event()

    def make_ready(self, worker: Any, candidate: Any) -> None:
        self.may_end.wait(10)
        self.asked.append((worker, candidate))


class Worker:
    def __init__(self) -> None:
        self.running = True
        self.waited_for = 0

    def ready(self) -> None:
        self.waited_for += 1

    def stop(self) -> None:
        pass


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    yield made
    made.may_end.set()


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    made = Judge(JudgeSettings("cpu", scratch_dir=tmp_path))
    roles, workers = made.roles, (Worker(), Worker(), Worker())
    roles.all = workers  # type: ignore[assignment]
    roles.baseline, roles.scratch, roles.candidate = workers  # type: ignore[assignment]
    monkeypatch.setattr(made.sessions, "target", "cuda")
    monkeypatch.setattr(made.builds, "compile", lambda candidate: CompileFailed(""))
    return made


def test_it_is_begun_once_for_a_task(judge: Judge, session: Session) -> None:
    session.may_end.set()
    for candidate in ("one", "another"):
        judge.sessions.make_ready(session, candidate)  # type: ignore[arg-type]
        judge.sessions.await_candidate()
    assert session.asked == [(judge.roles.candidate, "one")]


def test_on_cpu_it_would_disturb_what_is_timed(
    judge: Judge, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge.sessions, "target", "cpu")
    judge.sessions.make_ready(session, "one")  # type: ignore[arg-type]
    assert judge.sessions._readying is None and not session.readied


def test_profiles_do_not_speak_to_the_worker_meanwhile(judge: Judge, session: Session) -> None:
    judge.sessions.make_ready(session, "one")  # type: ignore[arg-type]
    with judge.sessions.alone():
        assert not session.asked
    baseline, scratch, candidate = (w.waited_for for w in judge.roles.all)  # type: ignore[attr-defined]
    assert (baseline, scratch, candidate) == (1, 1, 0)


@pytest.mark.parametrize("how", ["judge", "rest", "close"])
def test_whoever_needs_the_worker_waits(
    how: str, judge: Judge, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.sessions.make_ready(session, "one")  # type: ignore[arg-type]
    seen: list[int] = []
    monkeypatch.setattr(
        judge.sessions, "load", lambda *args: seen.append(len(session.asked)) or "no"
    )
    threading.Timer(0.05, session.may_end.set).start()
    if how == "judge":
        trial: Any = SimpleNamespace(compiled=SimpleNamespace())
        Judgement(judge.measurements, trial, {}).run()
        assert seen == [1]
    else:
        getattr(judge, how)()
    assert session.asked and judge.sessions._readying is None
