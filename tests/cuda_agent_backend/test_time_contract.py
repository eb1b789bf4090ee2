"""What kernels may cost a first call: decisions on times, and what the user's process does when a time is up."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
from kit.processes import text_in
from test_service import EXP, SIN, options, process, start, tasks_of

from cuda_agent_backend.hook.search import left_over
from cuda_agent_backend.options import parse
from cuda_agent_backend.runtime.machine import key_of
from cuda_agent_backend.search import interrupts
from cuda_agent_backend.search.budget import (
    acceptance_reserve,
    allowance,
    enough_to_measure,
    judgement_reserve,
    layouts_share,
)
from cuda_agent_backend.search.client import INTERRUPTED, LATE, SearchClient, SearchProcess
from cuda_agent_backend.search.current import Current
from cuda_agent_backend.search.deadline import Deadline
from cuda_agent_backend.search.durations import KEPT_S, Durations
from cuda_agent_backend.search.outcome import NothingFound
from cuda_agent_backend.search.process_budget import ProcessBudget, share_of_process
from cuda_agent_backend.search.progress import SearchProgress, standing
from cuda_agent_backend.search.setup import Setup
from cuda_agent_backend.search.task_locks import TaskLocks
from cuda_agent_backend.search.task_searches import search_one
from cuda_agent_backend.search.timed_judge import Notes, TimedJudge
from cuda_agent_backend.settings import Settings
from kernel_cache import Miss, NegativeRecord, Record
from sandbox.failures import Noisy
from sandbox.timing.turns import TurnsOver
from sandbox.verdict import Verdict

_ = process  # a fixture


class Clock:
    """One that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_graph_has_one_end_for_all_that_it_costs() -> None:
    clock, broken = Clock(), [-math.inf]
    deadline = Deadline(30.0, clock, lambda begun: broken[0] >= begun)
    clock.now += 12.0
    assert (deadline.used_s, deadline.left_s, deadline.is_up) == (12.0, 18.0, False)
    clock.now += 20.0
    assert (deadline.left_s, deadline.is_up) == (0.0, True)
    second = Deadline(30.0, clock, lambda begun: broken[0] >= begun)
    broken[0] = clock.now + 1.0
    assert second.left_s == 0.0 and second.is_interrupted and not second.is_up


def test_a_second_interrupt_soon_after_the_first_is_the_programs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interrupts, "_last", -math.inf)
    told = [interrupts.ends_the_search(now) for now in (100.0, 102.0, 104.0, 108.0)]
    assert told == [True, False, False, True]
    assert interrupts.since(108.0) and not interrupts.since(108.5)


def test_reserves_follow_what_steps_took_here() -> None:
    assert acceptance_reserve(120.0, [12.0, 20.0]) == pytest.approx(25.0)
    assert acceptance_reserve(120.0, [1.0]) == pytest.approx(18.0), "other graphs take longer"
    assert acceptance_reserve(10.0, [60.0]) == pytest.approx(6.0), "the search gets something"
    assert judgement_reserve(60.0) == 10.0
    assert judgement_reserve(60.0, [4.0, 2.0]) == pytest.approx(5.0)
    assert judgement_reserve(6.0, [40.0]) == pytest.approx(3.0)


def test_all_processes_together_spend_two_budgets_on_a_graph_at_most() -> None:
    spent, seconds = 0.0, 0.0
    for number in range(20):
        before, seconds = seconds, allowance(84.0, 120.0, spent, 1.0)
        assert not number or seconds < before or not seconds
        spent += seconds
    assert seconds == 0.0 and 120.0 < spent <= 240.0


def test_what_is_left_over_has_its_part_of_the_time_but_enough_to_find_something() -> None:
    assert allowance(84.0, 120.0, 84.0, 0.5) == pytest.approx(42.0)
    assert allowance(84.0, 120.0, 84.0, 0.01) == pytest.approx(20.0)
    assert allowance(12.0, 120.0, 84.0, 0.01) == pytest.approx(12.0)
    assert allowance(5.0, 10.0, 5.0, 1.0) == 5.0, "a small budget goes on as well"
    assert allowance(5.0, 10.0, 15.0, 1.0) == 0.0
    assert allowance(5.0, 30.0, 0.0, 1.0) == 5.0


def test_one_line_says_what_earlier_processes_left_over() -> None:
    line = "3 of 5 tasks were searched to the end; 2 go on for up to 8 s"
    assert left_over(5, 2, 8.0, 30.0) == line
    assert "2 had 30 s before" in left_over(5, 2, 0.0, 30.0)


def test_a_measurement_that_was_cut_short_is_tried_again_with_more_time_only() -> None:
    assert enough_to_measure(30.0, 0.0)
    assert not enough_to_measure(30.0, 30.0)
    assert enough_to_measure(40.0, 30.0)


def test_layouts_are_measured_only_where_there_is_time_for_it() -> None:
    assert layouts_share(120.0) == pytest.approx(48.0)
    assert layouts_share(20.0) == 0.0
    assert layouts_share(20.0, [5.0, 30.0]) == pytest.approx(8.0)
    assert layouts_share(120.0, [60.0]) == 0.0


def test_graphs_of_a_process_share_its_seconds() -> None:
    budget = ProcessBudget()
    granted = []
    for _ in range(7):
        granted.append(budget.grant(10.0, 40.0))
        budget.spend(granted[-1])
    assert granted[:3] == [10.0, 10.0, 10.0] and granted[3] == 5.0
    assert sum(granted) < 40.0
    budget.forget()
    assert budget.grant(10.0, 40.0) == 10.0
    assert share_of_process(10.0, -3.0) == 0.0
    assert share_of_process(10.0, math.inf) == 10.0


@pytest.mark.parametrize(
    ("environment", "given", "search", "budget_s"),
    [
        ({}, {}, "search", 120.0),
        ({}, {"effort": "none"}, "cached", 120.0),
        ({}, {"effort": "quick"}, "search", 30.0),
        ({}, {"effort": "none", "budget_s": 7}, "search", 7.0),
        ({}, {"effort": "none", "search": "background"}, "cached", 120.0),
        ({"EFFORT": "none"}, {}, "cached", 120.0),
        ({"EFFORT": "none"}, {"effort": "quick"}, "search", 30.0),
        ({"EFFORT": "none", "BUDGET_S": "9"}, {}, "search", 9.0),
        ({"EFFORT": "quick"}, {"budget_s": 5}, "search", 5.0),
        ({"BUDGET_S": "9"}, {"effort": "quick"}, "search", 30.0),
        ({"EFFORT": "quick", "SEARCH": "background"}, {}, "background", 30.0),
    ],
)
def test_seconds_win_over_an_effort_and_options_over_the_environment(
    environment: dict[str, str], given: dict[str, Any], search: str, budget_s: float
) -> None:
    settings = Settings.from_environment({f"CUDA_AGENT_{k}": v for k, v in environment.items()})
    found = parse(settings, None, {f"cuda_agent.{name}": value for name, value in given.items()})
    assert (found.search, found.budget_s) == (search, budget_s)


def test_a_process_has_four_budgets_unless_it_is_told() -> None:
    found = parse(Settings.from_environment({}), None, {"cuda_agent.budget_s": 10})
    assert found.process_budget_s == 40.0
    assert replace(found, patient=True).process_budget_s == math.inf
    settings = Settings.from_environment({"CUDA_AGENT_TOTAL_BUDGET_S": "50"})
    assert parse(settings).process_budget_s == 50.0


def test_durations_are_kept_for_a_day_and_damage_is_no_fault(tmp_path: Path) -> None:
    clock = Clock()
    durations = Durations(tmp_path / "kernels", clock)
    durations.note("judgement", 4.0)
    durations.spend("graph", 10.0)
    clock.now += 1000.0
    durations.note("judgement", 5.0)
    durations.spend("graph", 10.0)
    durations.note_cut("graph:set", 7.0)
    again = Durations(tmp_path / "kernels", clock)
    assert again.took("judgement") == [4.0, 5.0]
    assert again.read().spent["graph"][1] == 20.0 and again.read().cut["graph:set"][1] == 7.0
    clock.now += KEPT_S - 10.0
    assert again.took("judgement") == [5.0]
    clock.now = 0.0
    assert again.took("judgement") == [], "a clock that was set back"
    for damage in ("", "{", "[]", '{"steps": 3}', '{"steps": {"a": [1]}, "spent": {}, "cut": {}}'):
        again.path.write_text(damage)
        assert again.took("judgement") == []
    clock.now = 100.0
    again.note("judgement", 6.0)
    assert again.took("judgement") == [6.0]


def test_durations_that_cannot_be_written_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    durations = Durations(tmp_path / "file" / "kernels")
    durations.note("judgement", 4.0)
    durations.spend("graph", 4.0)
    assert durations.took("judgement") == []


def test_the_progress_line_has_the_time_gone_the_time_left_and_the_best_so_far() -> None:
    assert standing(12.0, 30.0, 1.314) == "12 s gone, 18 s left, best so far 1.31x"
    assert standing(40.0, 30.0, 0.0) == "40 s gone, 0 s left, nothing faster so far"
    assert standing(1.0, 30.0, None) == "1 s gone, 29 s left"


def test_the_best_of_a_search_stays_on_its_progress_line() -> None:
    clock = Clock()
    progress = SearchProgress("a title", "off", 20.0, clock=clock)
    progress.update({"done": 0, "of": 2, "text": "a", "best": 1.2})
    progress.update({"done": 1, "of": 2, "text": "b", "best": 0.0})
    clock.now += 5.0
    assert progress.standing() == "5 s gone, 15 s left, best so far 1.20x"


def test_a_request_that_nobody_waits_for_is_over_and_the_next_one_is_not() -> None:
    clock, unpaid = Clock(), [0.0]
    current = Current(clock)
    assert not current.is_over()
    with current.of({"id": 1, "hard_until": 110.0}, lambda: unpaid[0]):
        assert not current.is_over()
        clock.now, unpaid[0] = 120.0, 15.0  # other processes had the device
        assert not current.is_over()
        clock.now = 126.0
        assert current.is_over()
    current.leave(3)
    with current.of({"id": 2}, lambda: 0.0):
        assert not current.is_over()
        current.leave(2)
        assert current.is_over()
    with current.of({"id": 3}, lambda: 0.0):
        assert current.is_over(), "it was left before it began"
    assert not current.is_over()


class AnyJudge:
    """Answers what it is told to."""

    waited_s = 0.0

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def profile(self, *_: Any) -> Noisy:
        return Noisy("the machine is busy")

    def judge(self, *_: Any) -> Verdict:
        return self.verdict


def test_nothing_is_known_of_a_step_that_was_interrupted_but_a_win_is_kept() -> None:
    over = [False]
    notes = Notes(0.0, lambda *_: None)
    (task,) = tasks_of((EXP,))
    candidate: Any = None
    lost = TimedJudge(AnyJudge(Verdict("failed", "it died", None)), notes, lambda: over[0])
    won = TimedJudge(AnyJudge(Verdict("wins", "faster", 3.0)), notes, lambda: over[0])
    assert lost.judge(task, candidate).status == "failed"
    assert isinstance(lost.profile(task, candidate), Noisy)
    over[0] = True
    for step in (lost.judge, lost.profile, won.profile):
        with pytest.raises(TurnsOver):
            step(task, candidate)
    assert won.judge(task, candidate).wins


def test_what_had_no_time_to_try_anything_is_neither_kept_nor_a_failure(tmp_path: Path) -> None:
    (task,) = tasks_of((EXP,))
    setup = Setup.of(options(tmp_path))

    def late(*_: Any) -> NothingFound:
        return NothingFound("0 s are used up", keep=False, late=True)

    judges: Any = None
    told = search_one(setup.open_cache(), task, setup, 1.0, late, judges)
    assert told == {"reason": "0 s are used up", "begun": False}
    assert isinstance(setup.open_cache().get(key_of(task)), Miss)


HOLDS = """
import sys, time
from pathlib import Path
from cuda_agent_backend.search.task_locks import TaskLocks
with TaskLocks(Path(sys.argv[1])).at_once(sys.argv[2]) as mine:
    print(mine, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that works on the task `digests()[0]`."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "kernels"), "a" * 64]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert made.stdout and made.stdout.readline() == "True\n"
    yield made
    made.kill()
    made.wait()
    made.stdout.close()


def test_a_task_is_one_processes_until_that_dies(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    locks = TaskLocks(tmp_path / "kernels")
    with locks.at_once("a" * 64) as mine, locks.at_once("b" * 64) as other:
        assert not mine and other
    holder.kill()
    holder.wait()
    with locks.waited_for("a" * 64, lambda: True) as mine:
        assert mine
    (tmp_path / "file").write_text("")
    with TaskLocks(tmp_path / "file" / "kernels").at_once("a" * 64) as mine:
        assert mine, "without a file everybody works alone"


def test_a_search_that_is_not_over_in_time_is_left_and_the_process_serves_the_next(
    tmp_path: Path, process: SearchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SEARCH", "work until left")
    slow, quick = tasks_of((SIN, SIN), (EXP,))
    start(process, tmp_path)
    pid = process.pid
    client = SearchClient(options(tmp_path), process)
    assert client.search([slow], 1.0) == {}
    found = client.search([quick], 240.0)
    assert found[quick.digest]["promoted"] and process.pid == pid


def test_an_interrupt_ends_a_search_and_the_program_goes_on(
    tmp_path: Path, process: SearchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SEARCH", "work until left")
    note = tmp_path / "note"
    monkeypatch.setenv("FAKE_NOTE", str(note))
    monkeypatch.setattr(interrupts, "_last", -math.inf)
    slow, quick = tasks_of((SIN, SIN), (EXP,))
    start(process, tmp_path)
    client, pid = SearchClient(options(tmp_path), process), process.pid

    def interrupt() -> None:
        text_in(note)  # the search is at work, so it is being waited for
        note.unlink()
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted() -> dict[str, Any]:
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            return client.search([slow], 600.0)
        finally:
            thread.join()

    for _ in range(5):
        monkeypatch.setattr(interrupts, "_last", -math.inf)
        deadline = Deadline(60.0)
        assert interrupted() == {} and deadline.is_interrupted
    # Until the search is at work again takes as long as it does.
    monkeypatch.setattr(interrupts, "AGAIN_S", 600.0)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert client.search([quick], 240.0)[quick.digest]["promoted"] and process.pid == pid


def test_a_request_that_fills_the_pipe_of_one_that_does_not_read_is_late_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports_for_long.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = SearchProcess("imports_for_long")
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        answers.append(process.ask({"do": "search", "tasks": "t" * (1 << 22)}, 0.5, lambda _: None))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(60.0)
    assert process._child is not None
    process._child.kill()
    assert answers == [{"event": "failed", "reason": LATE}]


def test_a_request_that_waits_for_anothers_turn_is_late_as_well(
    tmp_path: Path, process: SearchProcess
) -> None:
    request = {"do": "nothing", "setup": Setup.of(options(tmp_path)).to_json()}
    with process._lock:
        answers: list[dict[str, Any]] = []
        thread = threading.Thread(
            target=lambda: answers.append(process.ask(request, 0.1, lambda _: None))
        )
        thread.start()
        thread.join(60.0)
    assert answers == [{"event": "failed", "reason": LATE}] and LATE != INTERRUPTED


def test_what_another_process_works_on_is_waited_for_last_and_used(
    tmp_path: Path, process: SearchProcess
) -> None:
    theirs, mine = tasks_of((SIN,), (EXP,))
    cache = kit.cache_of(options(tmp_path))
    start(process, tmp_path)
    held = threading.Event()

    def another_process() -> None:
        with TaskLocks(cache.path).at_once(theirs.digest):
            held.set()
            while not isinstance(cache.get(key_of(mine)), Record):
                time.sleep(0.05)
            now = time.time()
            seen = NegativeRecord(key_of(theirs), "search", {}, "nothing wins", now, now + 60.0)
            cache.put_negative(seen)

    thread = threading.Thread(target=another_process)
    thread.start()
    held.wait(60.0)
    became = SearchClient(options(tmp_path), process).search([theirs, mine], 240.0)
    thread.join(60.0)
    assert became[mine.digest]["promoted"]
    assert became[theirs.digest] == {"reason": "another process: nothing wins"}
