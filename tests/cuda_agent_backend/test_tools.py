"""The tools of an episode, on a bench that answers at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.observation import LOG_CHARACTERS
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.protocol import LAST_TURNS, OUT_OF_TIME, ToolCall, Turn
from cuda_agent_backend.agent.tools.toolbox import Toolbox, tool_schemas
from cuda_agent_backend.agent.workspace.folder import Workspace
from sandbox.accuracy.report import AccuracyReport
from sandbox.compile.disassembly import Inspection
from sandbox.failures import CompileFailed
from sandbox.plan.candidate import Candidate
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Task
from sandbox.timing.decision import report
from sandbox.timing.roofline import Achieved
from sandbox.verdict import Baselines, Correct, Outcome, Verdict

TICKS = 6
"""How often the loop looks at the clock in a turn: a clock that counts these goes a second a turn."""
SPEC = TensorSpec("float32", (64, 64), (64, 1))
TASK = Task(
    "cpu", (SPEC,), (Node("aten.relu.default", {"self": InputRef(0)}),), (NodeRef(0),), (SPEC,)
)


@dataclass(frozen=True)
class Built:
    facts: Mapping[str, Any] = field(default_factory=lambda: {"k": {"registers": 40}})


@dataclass
class Scripted:
    """A bench whose answers are set beforehand."""

    compiled: Any = field(default_factory=Built)
    judged: str = "wins"
    asked: list[str] = field(default_factory=list)
    worths: list[float] = field(default_factory=list)

    def baselines(self, task: Task) -> Baselines:
        return Baselines(3e-5, 2e-5, 1e-6, 1e-5)

    def compile(self, candidate: Candidate) -> Any:
        self.asked.append("compile")
        return self.compiled

    def inspect(self, candidate: Candidate) -> Inspection:
        return Inspection({"k": {"registers": 40}}, {}, "no objdump; install binutils")

    def verify(self, task: Task, candidate: Candidate) -> Outcome:
        return Correct(AccuracyReport(()))

    def profile(self, task: Task, candidate: Candidate, *, worth: float) -> Outcome:
        self.worths.append(worth)
        speed = report({"eager": [3e-5] * 12, "inductor": [2e-5] * 12, "candidate": [1e-5] * 12})
        rates = Achieved(1e-5, 32768, 3.2768e9, 0.25, 0, 0.0, 0.0)
        return Correct(AccuracyReport(()), speed, rates)

    def judge(self, task: Task, candidate: Candidate) -> Verdict:
        self.asked.append("judge")
        return Verdict(self.judged, "1.99x", 3.0)


def run(tools: Toolbox, name: str, **arguments: Any) -> dict[str, Any]:
    (message,) = tools.run([ToolCall.of("1", name, **arguments)])
    answer: dict[str, Any] = json.loads(message["content"])
    return answer


def made(tools: Toolbox) -> str:
    schedule = run(tools, "look")["schedules"][0]
    return str(run(tools, "sketch", schedule=schedule)["candidate"])


def test_an_episode_by_hand() -> None:
    tools = Toolbox(TASK, Scripted())
    assert run(tools, "look")["room"] == pytest.approx(2e-5 / 1.1e-5)
    name = made(tools)
    assert run(tools, "verify", candidate=name)["status"] == "correct"
    profile = run(tools, "profile", candidate=name)
    assert profile["speedup"]["median"] == pytest.approx(2.0)
    assert profile["baseline"] == "inductor"
    assert profile["achieved"] == {
        "us": 10.0,
        "gb_per_s": 3.3,
        "share_of_memory_rate": 0.25,
        "gflop_per_s": 0.0,
        "share_of_float32_rate": 0.0,
    }
    assert run(tools, "submit", candidate=name)["ok"]
    assert tools.finished == "promoted: 1.99x"


@pytest.mark.parametrize(
    ("seconds", "judged", "won"),
    [(3.0, "wins", True), (3.0, "too_slow", False), (1e9, "wins", True), (0.5, "wins", False)],
)
def test_what_was_found_in_time_is_judged(seconds: float, judged: str, won: bool) -> None:
    bench, now = Scripted(judged=judged), iter(range(1000))
    tools = Toolbox(TASK, bench)
    found = run_episode(SearchPolicy(), tools, Budget(seconds), clock=lambda: next(now) / TICKS)
    assert (found.best is not None) is won
    assert ("judge" in bench.asked) is (seconds > 1)
    assert bench.asked.count("judge") <= LAST_TURNS
    if not won:
        assert found.seconds > seconds
        assert found.reason == f"{seconds:.3g} s are used up" or "refused: 1.99x" in found.reason


def test_what_is_fast_and_refused_says_why() -> None:
    found = run_episode(SearchPolicy(), Toolbox(TASK, Scripted(judged="wrong")), Budget(1e9))
    assert re.fullmatch(
        r"nothing wins: best of \d+ candidates 2\.00x, refused: 1\.99x", found.reason
    )


@pytest.mark.parametrize(
    ("judged", "names"), [("wrong", ["a", "b", "c", "d"]), ("too_slow", ["a", "b"])]
)
def test_what_is_wrong_is_made_up_for_by_what_was_next(judged: str, names: list[str]) -> None:
    policy, submitted = SearchPolicy(), list[str]()
    policy._speed = {"c": 1.8, "a": 2.0, "b": 1.9, "d": 1.7, "e": 1.6}
    turn = policy._submit_next()
    while '"candidate"' in (arguments := turn.calls[0].arguments):
        submitted.append(json.loads(arguments)["candidate"])
        call = {"function": {"arguments": arguments}}
        turn = policy._after_submit(call, {"status": judged, "reason": "why"})
    assert submitted == names
    assert turn.content == "nothing wins: best of 5 candidates 2.00x, refused: why"


def test_nothing_but_submissions_is_done_when_the_time_is_up() -> None:
    class Stubborn:
        name = "stubborn"

        def __init__(self) -> None:
            self.search, self.over = SearchPolicy(), 0

        def act(self, messages: Any, tools: Any) -> Turn:
            self.over += messages[-1].get("content") == OUT_OF_TIME
            if self.over:
                return Turn("", (ToolCall.of("x", "look"),))
            return self.search.act(messages, tools)

    bench, policy, now = Scripted(), Stubborn(), iter(range(1000))
    tools = Toolbox(TASK, bench)
    found = run_episode(policy, tools, Budget(3.0), clock=lambda: next(now) / TICKS)
    assert policy.over == 1 and "judge" not in bench.asked
    assert found.reason == "3 s are used up"


def test_a_profile_is_checked_if_none_of_the_others_that_may_win_was_faster() -> None:
    bench = Scripted()
    tools = Toolbox(TASK, bench)
    made = [run(tools, "sketch", schedule=s) for s in run(tools, "look")["schedules"]]
    first, second, *_ = dict.fromkeys(answer["candidate"] for answer in made)
    for name in (first, first, second):
        run(tools, "profile", candidate=name)
    assert bench.worths == [1.0, 1.0, pytest.approx(2.0)]
    bench.judged = "wrong"
    run(tools, "submit", candidate=first)
    run(tools, "profile", candidate=second)
    assert bench.worths[-1] == 1.0


def test_what_is_known_of_the_machine_code_is_told() -> None:
    tools = Toolbox(TASK, Scripted())
    schedule = run(tools, "look")["schedules"][0]
    answer = run(tools, "sketch", schedule=schedule)
    assert answer["facts"] == {"k": {"registers": 40}}
    found = run(tools, "inspect", candidate=answer["candidate"])
    assert found["kernels"] == {"k": {"registers": 40}}
    assert "binutils" in found["why_no_instructions"]


def test_compiler_output_is_told_and_its_middle_is_cut() -> None:
    log = "first error\n" + 9000 * "x" + "\nlast line"
    tools = Toolbox(TASK, Scripted(compiled=CompileFailed(log)))
    schedule = run(tools, "look")["schedules"][0]
    answer = run(tools, "sketch", schedule=schedule)
    assert not answer["ok"]
    assert "first error" in answer["error"]
    assert answer["log"].startswith("first error") and answer["log"].endswith("last line")
    assert len(answer["log"]) < LOG_CHARACTERS + 100
    assert str(len(log)) in answer["log"]


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("look", {"deep": True}, "deep"),
        ("profile", {"candidate": "0000"}, "no candidate"),
        ("profile", {}, "candidate"),
        ("inspect", {"candidate": 7}, "candidate"),
        ("sketch", {"schedule": [{"width": -3}]}, "schedule"),
        ("compile", {"source": "k.cpp", "plan": "p.json"}, "no tool"),
        ("dance", {}, "no tool"),
    ],
)
def test_a_wrong_call_is_answered_with_what_is_wrong(
    name: str, arguments: dict[str, Any], complaint: str
) -> None:
    bench = Scripted()
    answer = run(Toolbox(TASK, bench), name, **arguments)
    assert not answer["ok"]
    assert complaint in answer["error"]
    assert bench.asked == []


def test_giving_up_needs_no_candidate() -> None:
    tools = Toolbox(TASK, Scripted())
    assert run(tools, "submit", reason="at the limit")["ended"] == "at the limit"
    assert tools.finished == "at the limit"
    assert tools.best() is None


def test_every_tool_has_a_schema_and_every_schema_a_tool(tmp_path: Path) -> None:
    def names(schemas: Any) -> set[str]:
        return {s["function"]["name"] for s in schemas}

    with Workspace(tmp_path / "w") as workspace:
        full = Toolbox(TASK, Scripted(), workspace=workspace)
        assert names(full.schemas) == names(tool_schemas()) == set(full.tools)
    bare = Toolbox(TASK, Scripted())
    assert names(bare.schemas) == names(tool_schemas(files=False)) == set(bare.tools)
