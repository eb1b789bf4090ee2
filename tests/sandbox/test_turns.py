"""Turns for compilers and judgements, with threads that wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from sandbox.timing.turns import MAX_STREAK, Turns, TurnsOver

SECONDS = 20.0


class Thread:
    """A thread that takes a turn, notes that it has it, and holds it until it is told to let go."""

    def __init__(
        self, turn: Callable[[], AbstractContextManager[None]], name: str, log: list[str]
    ) -> None:
        self.has, self.let_go, self.done = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            with turn():
                log.append(name)
                self.has.set()
                assert self.let_go.wait(SECONDS)
            self.done.set()

        threading.Thread(target=work, daemon=True).start()

    def end(self) -> None:
        """Let go, and wait until that has come about."""
        assert self.has.wait(SECONDS)
        self.let_go.set()
        assert self.done.wait(SECONDS)


def waiting(turns: Turns, count: int) -> None:
    """Wait until so many threads wait."""
    for _ in range(2000):
        with turns._changed:
            if len(turns._waiting) + turns._compilers_waiting == count:
                return
        threading.Event().wait(0.005)
    raise AssertionError("they do not wait")


def test_one_judgement_at_a_time_and_so_many_compilers() -> None:
    turns, log = Turns(2, alone=False), list[str]()
    compilers = [Thread(turns.compiling, f"c{i}", log) for i in range(3)]
    judgements = [Thread(lambda: turns.device("t"), f"d{i}", log) for i in range(2)]
    waiting(turns, 2)
    _soon([*compilers, *judgements], 3)
    assert sum(c.has.is_set() for c in compilers) == 2
    assert sum(d.has.is_set() for d in judgements) == 1
    for thread in sorted([*compilers, *judgements], key=lambda t: not t.has.is_set()):
        thread.end()
    assert sorted(log) == ["c0", "c1", "c2", "d0", "d1"]


def test_where_they_disturb_compilers_and_judgements_alternate() -> None:
    turns, log = Turns(2, alone=True), list[str]()
    first = Thread(turns.compiling, "c0", log)
    assert first.has.wait(SECONDS)
    device = Thread(lambda: turns.device("t"), "d0", log)
    waiting(turns, 1)
    late = [Thread(turns.compiling, "c1", log)]
    waiting(turns, 2)
    again = Thread(lambda: turns.device("t"), "d1", log)
    waiting(turns, 3)
    first.end()
    assert device.has.wait(SECONDS)
    assert not late[0].has.is_set()
    device.end()
    assert late[0].has.wait(SECONDS)  # it waited through a turn, so it comes before the next
    assert not again.has.is_set()
    late[0].end()
    again.end()
    assert log == ["c0", "d0", "c1", "d1"]


def test_the_task_of_the_last_turn_comes_first_but_not_for_ever() -> None:
    turns, log = Turns(1, alone=False), list[str]()
    holder = Thread(lambda: turns.device("a"), "a", log)
    assert holder.has.wait(SECONDS)
    threads = [Thread(lambda: turns.device("b"), "b", log)]
    waiting(turns, 1)
    for _ in range(MAX_STREAK):
        threads.append(Thread(lambda: turns.device("a"), "a", log))
        waiting(turns, len(threads))
    holder.end()
    for _ in range(len(threads)):
        now = next(t for t in _soon(threads))
        now.end()
        threads.remove(now)
    assert log == ["a"] * MAX_STREAK + ["b", "a"]


def _soon(threads: list[Thread], count: int = 1) -> list[Thread]:
    """Those that have a turn, once so many have noted that: they do so a moment after they get it."""
    for _ in range(2000):
        found = [t for t in threads if t.has.is_set()]
        if len(found) >= count:
            return found
        threading.Event().wait(0.005)
    raise AssertionError("nobody got a turn")


def test_an_error_gives_the_turn_back() -> None:
    turns = Turns(1, alone=True)
    for turn in (turns.compiling, lambda: turns.device("t")):
        with pytest.raises(ZeroDivisionError), turn():
            raise ZeroDivisionError
    with turns.compiling():
        pass
    with turns.device("t"):
        pass


def test_no_compiler_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Turns(0, alone=True)


@pytest.mark.parametrize("alone", [False, True])
def test_when_turns_end_whoever_waits_is_told_and_whoever_works_may_finish(alone: bool) -> None:
    turns, log = Turns(1, alone=alone), list[str]()
    working = Thread(lambda: turns.device("t"), "working", log)
    assert working.has.wait(SECONDS)
    told = threading.Semaphore(0)

    def wait(turn: Callable[[], AbstractContextManager[None]]) -> None:
        try:
            with turn():
                log.append("had a turn")
        except TurnsOver:
            told.release()

    waiters = (lambda: turns.device("t"), lambda: turns.device("u"))
    for turn in (*waiters, turns.compiling) if alone else waiters:
        threading.Thread(target=wait, args=(turn,), daemon=True).start()
    waiting(turns, 3 if alone else 2)
    turns.end()
    for _ in range(3 if alone else 2):
        assert told.acquire(timeout=SECONDS)
    working.end()
    with pytest.raises(TurnsOver), turns.device("t"):
        log.append("had a turn")
    assert log == ["working"]


def test_it_is_known_how_long_turns_were_had() -> None:
    turns, log = Turns(2, alone=False), list[str]()
    assert turns.working.seconds == turns.judging.seconds == 0.0
    compiler = Thread(turns.compiling, "c", log)
    assert compiler.has.wait(SECONDS)
    judgement = Thread(lambda: turns.device("t"), "d", log)
    assert judgement.has.wait(SECONDS)
    judgement.end()
    judging = turns.judging.seconds
    compiler.end()
    working = turns.working.seconds
    assert 0.0 < judging == turns.judging.seconds < working == turns.working.seconds
