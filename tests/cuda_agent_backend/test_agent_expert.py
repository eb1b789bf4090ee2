"""The expert's script: its plans are those of the tasks, its choices follow what the tools answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch_kit import sample

from benchmarks.agent_expert import cpu
from benchmarks.agent_expert.__main__ import run_play, summarise, versions_tried
from benchmarks.agent_expert.plays import PLAYS
from benchmarks.agent_expert.policy import ENOUGH, ExpertPolicy, line_edits
from benchmarks.agent_expert.script import Unfit, Version
from cuda_agent_backend.agent.protocol import Message, ToolCall, tool_message
from cuda_agent_backend.agent.trajectories.events import Trajectory
from cuda_agent_backend.agent.trajectories.file import read
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing, find_cuda, find_triton
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Plan
from sandbox.task.task import Task

ROOT = Path(__file__).parents[2]
LANGUAGES = {".cu": "cuda", ".py": "triton"}


IN_A_PROCESS_OF_ITS_OWN = """
import json
from benchmarks.agent_expert.plays import PLAYS
from benchmarks.agent_expert.tasks import task_without_device
print(json.dumps({name: task_without_device(name).to_json() for name in PLAYS}))
"""


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    """The tasks of all plays, on tensors without memory.

    Traced in another process: where Inductor compiled for the cpu before, it registers its patterns for cuda twice.
    """
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Task.from_json(text) for name, text in found.items()}


def test_plans_are_those_of_the_practice_tasks(tasks: dict[str, Any]) -> None:
    for name, play in PLAYS.items():
        versions = play.versions(tasks[name])
        assert len(versions) >= 3, name
        for version in versions:
            plan = Plan.from_json(version.plan)
            assert plan.input_specs == tasks[name].inputs, name
            assert plan.output_specs == tasks[name].output_specs, name
        assert len(play.why) > 80, name


def test_a_tenth_of_the_plays_is_in_triton_and_there_are_more_than_ten(
    tasks: dict[str, Any],
) -> None:
    suffixes = [
        {Path(v.file).suffix for v in PLAYS[name].versions(task)} for name, task in tasks.items()
    ]
    assert len(suffixes) >= 12
    assert suffixes.count({".py"}) >= 1
    assert {".py"} in suffixes[:10]


@pytest.mark.slow
@pytest.mark.skipif(isinstance(find_cuda(), Missing), reason="no CUDA compiler")
@pytest.mark.parametrize("name", PLAYS)
def test_every_version_compiles_for_hopper_without_spills(
    name: str, tasks: dict[str, Any], tmp_path: Path
) -> None:
    for number, version in enumerate(PLAYS[name].versions(tasks[name])):
        language = LANGUAGES[Path(version.file).suffix]
        if language == "triton" and isinstance(find_triton(), Missing):
            pytest.skip("Triton is not installed")
        folder = tmp_path / str(number)
        folder.mkdir()
        plan = Plan.from_json(version.plan)
        made = compile_candidate(
            Candidate("cuda", language, version.source, plan, "policy"), folder, "sm_90a", 120
        )  # type: ignore[arg-type]
        assert isinstance(made, Compiled), made
        assert made.facts
        for facts in made.facts.values():
            assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0, (
                version.say,
                facts,
            )


def test_another_task_than_was_written_for_is_unfit(tasks: dict[str, Any]) -> None:
    odd = sample(lambda x: torch.cumsum(x, 1), torch.randn(3, 7)).task
    for name in ("running_maximum", "cumsum_long_rows", "avg_pool2d_box_filter"):
        with pytest.raises(Unfit):
            PLAYS[f"single/{name}"].versions(odd)


def test_line_edits_turn_one_text_into_the_other_or_say_that_they_do_not() -> None:
    assert line_edits("a\nb\nc\n", "a\nx\nc\n") == [{"old": "b\n", "new": "x\n"}]
    assert line_edits("a\na\n", "a\nb\n") is None  # which of the two is not said
    assert line_edits("a\n", "a\nb\n") is None
    assert line_edits("a\n", "a\n") == []


class Answers:
    """Tools that answer from a table: speed-ups by source, by file. `refused`: candidates that a judgement refuses."""

    def __init__(
        self, speeds: dict[str, float], refused: Sequence[str] = (), noisy: int = 0
    ) -> None:
        self.files: dict[str, str] = {}
        self.speeds, self.refused, self.noisy = speeds, refused, noisy
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.ended = ""

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        return [
            tool_message(call, self._answer(call.name, json.loads(call.arguments)))
            for call in calls
        ]

    def _answer(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((name, arguments))
        return {"ok": True, **getattr(self, f"_{name}", lambda **_: {})(**arguments)}

    def _write(self, path: str, content: str) -> dict[str, Any]:
        self.files[path] = content
        return {}

    def _multi_edit(self, path: str, edits: list[dict[str, str]]) -> dict[str, Any]:
        for change in edits:
            assert self.files[path].count(change["old"]) == 1
            self.files[path] = self.files[path].replace(change["old"], change["new"])
        return {}

    def _compile(self, source: str, plan: str) -> dict[str, Any]:
        assert plan in self.files
        text = self.files[source]
        return {"candidate": text} if text in self.speeds else {"ok": False, "error": "line 1"}

    def _profile(self, candidate: str) -> dict[str, Any]:
        return {"speedup": {"median": self.speeds[candidate]}}

    def _submit(self, candidate: str = "", reason: str = "") -> dict[str, Any]:
        if not candidate:
            self.ended = reason
        elif self.noisy:
            self.noisy -= 1
            return {"ok": False, "status": "noisy", "reason": "a busy machine"}
        elif candidate in self.refused:
            return {"ok": False, "status": "too_slow", "reason": "slower"}
        else:
            self.ended = f"promoted {candidate}"
        return {}


def versions(*sources: str) -> list[Version]:
    return [Version(f"try {s}", "fast.cu", s, f"plan of {s}") for s in sources]


def played(answers: Answers, policy: ExpertPolicy) -> str:
    """How the episode ended."""
    messages: list[Message] = [{"role": "user", "content": "the task"}]
    for _ in range(40):
        turn = policy.act(messages, [])
        messages += [turn.to_message(), *answers.run(turn.calls)]
        if answers.ended:
            return answers.ended
    raise AssertionError("no end")


def submitted(answers: Answers) -> list[str]:
    return [a["candidate"] for name, a in answers.asked if name == "submit" and "candidate" in a]


def test_the_fastest_version_is_submitted_and_the_next_one_after_a_refusal() -> None:
    answers = Answers({"a": 1.1, "b": 1.6, "c": 1.4}, refused=["b"])
    assert played(answers, ExpertPolicy(versions("a", "b", "c"))) == "promoted c"
    assert submitted(answers) == ["b", "c"]


def test_versions_that_do_not_compile_are_left_out() -> None:
    answers = Answers({"a": 1.1, "c": 1.4})
    assert played(answers, ExpertPolicy(versions("a", "broken", "c"))) == "promoted c"
    assert played(Answers({}), ExpertPolicy(versions("broken"))) == "nothing wins: no version works"


def test_a_noisy_judgement_is_asked_for_again() -> None:
    answers = Answers({"a": 1.5}, noisy=2)
    assert played(answers, ExpertPolicy(versions("a"))) == "promoted a"
    assert submitted(answers) == ["a", "a", "a"]


def test_what_is_fast_enough_ends_the_tuning() -> None:
    answers = Answers({"a": ENOUGH + 1, "b": ENOUGH, "c": 9.0})
    assert played(answers, ExpertPolicy(versions("a", "b", "c"))) == "promoted a"
    assert "c" not in answers.files.values()


def test_when_the_time_is_up_the_best_so_far_is_submitted() -> None:
    policy = ExpertPolicy(versions("a", "b"))
    messages: list[Message] = [{"role": "user", "content": "the task"}]
    policy.act(messages, [])
    policy.speeds = {"a": 1.2, "b": 1.3}
    messages.append({"role": "user", "content": "The time is up."})
    (call,) = policy.act(messages, []).calls
    assert (call.name, json.loads(call.arguments)) == ("submit", {"candidate": "b"})


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, native_dir: Path) -> Iterator[Judge]:
    """A judge for the cpu that runs C++ of a policy."""
    scratch = tmp_path_factory.mktemp("judge")
    with Judge(
        JudgeSettings("cpu", scratch_dir=scratch, native_dir=native_dir, consent=True)
    ) as made:
        yield made


@pytest.mark.alone
def test_raw_source_goes_all_the_way_through_the_real_tools(judge: Judge, tmp_path: Path) -> None:
    once = partial(ExpertPolicy, submissions=1, noisy_tries=1)
    facts = run_play(cpu.PLAYS["cpu/mean_middle"], judge, 600.0, tmp_path, once)
    tried = facts["versions"]
    assert [v["source"] for v in tried] == ["fast.cpp", "fast.cpp"]
    assert len({v["candidate"] for v in tried}) == 2
    assert set(facts["profiles"]) <= {v["candidate"] for v in tried} and facts["profiles"]
    (trajectory,) = tmp_path.iterdir()
    found = read(trajectory)
    assert isinstance(found, Trajectory) and found.finished, found
    messages = found.messages
    called = [c["function"]["name"] for m in messages for c in m.get("tool_calls", ())]
    assert called[:6] == ["look", "read", "write", "write", "compile", "verify"]
    assert {"multi_edit", "profile", "submit"} <= set(called)
    assert versions_tried(messages) == tried
    verified = [json.loads(m["content"]) for m in messages if m.get("name") == "verify"]
    assert [v["status"] for v in verified] == ["correct"]
    settled = {status for status, _ in facts["verdicts"].values()}
    assert settled and settled <= {"wins", "too_slow", "noisy"}
    assert summarise({"cpu/mean_middle": facts})["tasks"] == 1
