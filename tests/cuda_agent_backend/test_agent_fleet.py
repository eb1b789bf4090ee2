"""Many episodes at once: each gets its own answers, faults stay where they are, an interrupt loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import episode_kit as kit
import pytest

from cuda_agent_backend.agent.environment import Environment
from cuda_agent_backend.agent.fleet import Fleet
from cuda_agent_backend.agent.loop import Budget
from cuda_agent_backend.agent.protocol import Message, Schema, Stopped, Turn, Usage
from cuda_agent_backend.agent.trajectories.events import Trajectory
from cuda_agent_backend.agent.trajectories.file import read
from sandbox.judge.pool import Pool
from sandbox.task.task import Task

HERE = Path(__file__).parent
CALLS = 11
"""In an episode."""


@dataclass
class Judge:
    """Takes its time, and notes whether anybody else used it meanwhile."""

    target: str = "cpu"
    seconds: float = 0.002
    calls: int = 0
    inside: int = 0
    most: int = 0
    hold: threading.Event = field(default_factory=threading.Event)

    def baselines(self, task: Task) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        self.calls += 1
        self.inside -= 1


def opened(task: Task, seat: Any) -> Environment:
    tools: Any = kit.Tools(task=task, delay=lambda: seat.baselines(task))
    return Environment(task, tools)


def task(rows: int) -> Task:
    spec = replace(kit.SPEC, shape=(rows, 64))
    return replace(kit.TASK, inputs=(spec,), output_specs=(spec,))


def header(of: Task, policy: str, schemas: Sequence[Schema]) -> Any:
    return kit.header(task=of.to_json(), task_digest=of.digest, policy=policy)


def fleet(make: Callable[[Task], Any], judge: Judge | None = None, **more: Any) -> Fleet:
    pool = Pool(judge or Judge())  # type: ignore[arg-type]
    return Fleet(pool, make, Budget(1e9), environment=opened, header_of=header, **more)


def test_each_task_gets_its_own_episode(tmp_path: Path) -> None:
    tasks = [task(64 + n) for n in range(24)]
    judge = Judge()
    made = fleet(lambda of: kit.Script(kit.winning()), judge, at_once=16, folder=tmp_path)
    found = {finished.number: finished for finished in made.run(tasks)}
    assert sorted(found) == list(range(24))
    for number, finished in found.items():
        assert finished.task is tasks[number] and finished.result.stop == "submitted"
        assert finished.path is not None
        kept = read(finished.path)
        assert isinstance(kept, Trajectory) and kept.finished
        assert kept.header.task_digest == tasks[number].digest
        assert kept.messages == finished.result.trajectory
        assert tasks[number].to_json() in kept.messages[0]["content"]
    assert judge.most == 1
    assert judge.calls == 24 * CALLS


def test_no_more_policies_are_asked_at_once_than_may_be() -> None:
    inside, most, lock = [0], [0], threading.Lock()

    def busy() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        with lock:
            inside[0] -= 1

    made = fleet(lambda of: kit.Script(kit.winning(), delay=busy), at_once=12, policy_calls=3)
    assert len(list(made.run([task(64)] * 12))) == 12
    assert most[0] == 3


def test_policies_are_closed_when_their_episodes_end(tmp_path: Path) -> None:
    closed: list[str] = []

    class Holding(kit.Script):
        def close(self) -> None:
            closed.append(self.name)

    steps: list[kit.Step] = [*kit.winning()[:2], lambda messages: 1 / 0]  # type: ignore[list-item, return-value]
    list(fleet(lambda of: Holding(kit.winning(), "wins"), folder=tmp_path).run([task(64)]))
    list(fleet(lambda of: Holding(steps, "fails")).run([task(64)]))
    assert closed == ["wins", "fails"]


def test_a_fault_harms_its_own_episode_only() -> None:
    def make(of: Task) -> Any:
        rows = of.inputs[0].shape[0]
        if rows == 65:
            raise ImportError("no such policy")
        steps: dict[int, list[kit.Step]] = {
            66: [lambda messages: 1 / 0],  # type: ignore[list-item, return-value]
            67: [kit.calls("", kit.ToolCall.of("1", "fail"))],
        }
        return kit.Script(steps.get(rows, kit.winning()))

    found = {
        f.number: f.result for f in fleet(make, at_once=8).run([task(64 + n) for n in range(8)])
    }
    assert [found[n].stop for n in range(8)] == ["submitted", "bug", "bug", "bug"] + [
        "submitted"
    ] * 4
    assert "no such policy" in found[1].reason
    assert "ZeroDivisionError" in found[2].reason
    assert "a fault of the tool" in found[3].reason


def test_leaving_early_ends_all_and_leaves_records_to_go_on_with(tmp_path: Path) -> None:
    tasks = [task(64 + n) for n in range(12)]
    judge = Judge(seconds=0.005)
    made = fleet(lambda of: kit.Script(kit.winning()), judge, at_once=6, folder=tmp_path)
    with closing(made.run(tasks)) as results:  # type: ignore[type-var]
        early = [next(results).number]
    calls = judge.calls
    time.sleep(0.05)
    assert judge.calls == calls and judge.inside == 0
    kept = [read(path) for path in tmp_path.glob("*.jsonl")]
    assert all(isinstance(t, Trajectory) for t in kept)
    assert any(isinstance(t, Trajectory) and not t.finished for t in kept)
    again = fleet(lambda of: kit.Script(kit.winning()), folder=tmp_path)
    rest = [of for n, of in enumerate(tasks) if n not in early]
    found = list(again.run(rest))
    assert {f.result.stop for f in found} == {"submitted"}
    assert all(
        isinstance(t, Trajectory) and t.finished for t in map(read, tmp_path.glob("*.jsonl"))
    )


def test_whose_pool_ends_is_interrupted_and_counted() -> None:
    made = fleet(lambda of: kit.Script(kit.winning()), Judge(seconds=0.01), at_once=4)
    stops = []
    for finished in made.run([task(64 + n) for n in range(12)]):
        stops.append(finished.result.stop)
        made.pool.end()
    assert len(stops) == 12
    assert stops[0] == "submitted" and set(stops) == {"submitted", "interrupted"}


def test_a_policy_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    never = threading.Event()
    asked, answered = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        never.wait(60)
        answered.set()

    def make(of: Task) -> Any:
        slow = of.inputs[0].shape[0] == 64
        return kit.Script(kit.winning(), delay=hang if slow else lambda: None)

    results = fleet(make, folder=tmp_path).run([task(64), task(65)])
    assert next(results).number == 1
    assert asked.wait(20)
    results.close()  # type: ignore[attr-defined]
    assert not answered.is_set()
    (path,) = [p for p in tmp_path.glob("*") if not finished(p)]
    before = path.read_bytes()
    never.set()
    assert answered.wait(20)
    time.sleep(0.1)
    assert path.read_bytes() == before  # what came too late is dropped


def finished(path: Path) -> bool:
    found = read(path)
    assert isinstance(found, Trajectory)
    return found.finished


def test_waiting_for_others_costs_no_budget() -> None:
    judge = Judge(seconds=0.04)
    made = replace(fleet(lambda of: kit.Script(kit.winning()), judge), budget=Budget(5.0))
    found = list(made.run([task(64)] * 16))
    # 7 s of the judge in all, a sixteenth of it each. With their waiting, none would have time for its last profile.
    assert judge.calls == 16 * CALLS
    assert {f.result.stop for f in found} == {"submitted"}
    assert made.pool.judging_s >= 16 * CALLS * 0.04
    assert made.pool.working_s >= made.pool.judging_s


SCRIPT = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell they are ignored
sys.path.insert(0, {here!r})
from pathlib import Path
import episode_kit as kit, test_agent_fleet as t
def slow(of):
    first = of.inputs[0].shape[0] == 64  # the others take a while: whoever interrupts may be slow
    return kit.Script(kit.winning(), delay=lambda: time.sleep(0.01 if first else 1.5))
made = t.fleet(slow, t.Judge(seconds=0.01), folder=Path(sys.argv[1]))
print("ready", flush=True)
try:
    for found in made.run([t.task(64 + n) for n in range(16)]):
        print(found.number, flush=True)
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""


def test_an_interrupt_ends_all_cleanly(tmp_path: Path) -> None:
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(here=str(HERE)), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.readline()  # one is done
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "interrupted 1" in said
    kept = [read(p) for p in tmp_path.glob("*.jsonl")]
    assert len(kept) == 16
    whole = [t for t in kept if isinstance(t, Trajectory)]
    assert len(whole) == 16 and not any(t.torn for t in whole)
    done = sum(t.finished for t in whole)
    assert 1 <= done < 16
    made = fleet(lambda of: kit.Script(kit.winning()), folder=tmp_path)
    list(made.run([task(64 + n) for n in range(16)]))
    assert all(map(finished, tmp_path.glob("*.jsonl")))
    assert len(list(tmp_path.glob("*.jsonl"))) == 16 + done


@pytest.mark.parametrize("count", [1, 3])
def test_several_episodes_of_one_task_write_their_own_files(tmp_path: Path, count: int) -> None:
    made = fleet(lambda of: kit.Script(kit.winning()), folder=tmp_path)
    assert len(list(made.run([kit.TASK] * count))) == count
    assert len(list(tmp_path.glob("*.jsonl"))) == count


def test_a_policy_is_rebuilt_before_it_goes_on(tmp_path: Path) -> None:
    @dataclass
    class Counting:
        """Its state is the number of its turns."""

        name: str = "counting"
        done: int = 0

        def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
            turn = kit.winning()[self.done]
            assert isinstance(turn, Turn)
            self.done += 1
            return turn

        def resume(self, messages: Sequence[Message], tools: Sequence[Schema]) -> str:
            self.done = sum(message["role"] == "assistant" for message in messages)
            return ""

    results = fleet(lambda of: Counting(), Judge(seconds=0.01), folder=tmp_path).run(
        [task(64), task(65)]
    )
    next(results)
    results.close()  # type: ignore[attr-defined]
    found = list(fleet(lambda of: Counting(), folder=tmp_path).run([task(64), task(65)]))
    assert {f.result.stop for f in found} == {"submitted"}


def test_what_was_spent_before_a_kill_reaches_a_policy_of_a_fleet(tmp_path: Path) -> None:
    told: list[Sequence[Usage]] = []

    class Paid(kit.Script):
        def spent(self, usages: Sequence[Usage]) -> None:
            told.append(usages)

    steps: list[kit.Step] = [
        replace(kit.winning()[0], usage=Usage(7, 3)),  # type: ignore[type-var]
        Stopped("infrastructure", "gone"),
    ]
    list(fleet(lambda of: kit.Script(steps), folder=tmp_path).run([task(64)]))
    list(fleet(lambda of: Paid(kit.winning()), folder=tmp_path).run([task(64)]))
    assert told == [[Usage(7, 3)]]
