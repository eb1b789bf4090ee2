"""The environment as a policy meets it: the folder, the first messages, a whole episode with a kernel by hand."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_tasks import samples
from test_tools import Scripted

from cuda_agent_backend.agent.environment import Environment, open_environment
from cuda_agent_backend.agent.loop import Budget, next_batch, run_episode
from cuda_agent_backend.agent.memory.recall import Neighbour
from cuda_agent_backend.agent.observation import LOG_CHARACTERS
from cuda_agent_backend.agent.policies import registry
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.protocol import Message, Schema, ToolCall, Turn
from cuda_agent_backend.agent.skill.document import skill
from cuda_agent_backend.agent.skill.example import (
    TRITON_SOURCE,
    example_plan,
    example_source,
    example_task,
    source_of,
    triton_plan,
)
from cuda_agent_backend.agent.tools.shell import ShellResult
from cuda_agent_backend.search.episode import run_agent
from sandbox.compile.triton_plan import has_triton
from sandbox.judge import Judge
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.plan import Plan
from sandbox.task.task import Task

ROWS = 64
TASK = example_task("cpu", rows=ROWS)
SOURCE = example_source("cpu").replace("ROWS = 4096", f"ROWS = {ROWS}")


@dataclass
class Result:
    output: str
    status: int | None
    timed_out: bool = False


@dataclass
class FakeShell:
    closed: bool = False
    commands: list[tuple[str, float]] = field(default_factory=list)

    def run(self, command: str, timeout_s: float) -> ShellResult:
        self.commands.append((command, timeout_s))
        return Result("x" * 100_000, 3 if command == "false" else 0)

    def close(self) -> None:
        self.closed = True


def call(environment: Environment, name: str, **arguments: Any) -> dict[str, Any]:
    (message,) = environment.tools.run([ToolCall.of("1", name, **arguments)])
    answer: dict[str, Any] = json.loads(message["content"])
    return answer


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    with open_environment(TASK, Scripted(), tmp_path / "w", shell=None) as made:
        yield made


def test_the_folder_holds_what_the_text_speaks_of(environment: Environment) -> None:
    workspace = environment.tools.workspace
    assert workspace is not None
    held = set(workspace.paths())
    assert {"SKILL.md", "task.py", "task.json", "facts.json", "plan.json"} <= held
    assert {"example/kernel.cpp", "example/plan.json", "example/task.py"} <= held
    assert held - workspace.provided == {"plan.json"}
    assert workspace.text_of("SKILL.md") == skill("cpu")
    assert Task.from_json(str(workspace.text_of("task.json"))) == TASK
    facts = json.loads(str(workspace.text_of("facts.json")))
    assert facts["device"]["cache_bytes"] > 0
    assert "float32_matmul_precision" in facts["flags"]


def test_baselines_are_in_the_folder_after_a_look(environment: Environment) -> None:
    assert not call(environment, "read", path="baselines.json")["ok"]
    look = call(environment, "look")
    workspace = environment.tools.workspace
    assert workspace is not None
    kept = json.loads(str(workspace.text_of("baselines.json")))
    assert kept["room"] == look["room"] and kept["floor_us"] == look["floor_us"]
    assert "read-only" in call(environment, "write", path="baselines.json", content="")["error"]


def test_the_whole_of_the_skill_is_read_in_one_go(environment: Environment) -> None:
    answer = call(environment, "read", path="SKILL.md")
    assert "more" not in answer
    assert answer["lines"] == len(skill("cpu").splitlines())


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_first_messages_point_to_the_text_and_hold_the_task(
    tmp_path: Path, target: str
) -> None:
    task = samples(target)["softmax"].task
    with open_environment(task, Scripted(), tmp_path / "w", shell=None) as made:
        system, user = made.first_messages()
        assert (system["role"], user["role"]) == ("system", "user")
        assert "SKILL.md" in system["content"]
        workspace = made.tools.workspace
        assert workspace is not None
        assert str(workspace.text_of("task.py")) in user["content"]
        for path in workspace.paths():
            assert path in user["content"]


def test_without_a_folder_there_are_no_files_and_the_task_comes_as_json() -> None:
    with open_environment(TASK, Scripted(), None) as made:
        (only,) = made.first_messages()
        assert TASK.to_json() in only["content"]
        assert {"write", "compile", "shell"}.isdisjoint(made.tools.tools)


def test_kernels_that_policies_wrote_for_like_tasks_lie_in_the_folder(tmp_path: Path) -> None:
    def neighbour(origin: str) -> Neighbour:
        plan = example_plan("cpu")
        record: Any = SimpleNamespace(
            origin=origin, language="c++", source=f"// {origin}", plan=plan, label="[]", evidence={}
        )
        return Neighbour(0.5, example_task("cpu"), 1.3, record)

    near = [neighbour("sketch"), neighbour("policy")]
    with open_environment(TASK, Scripted(), tmp_path / "w", neighbours=near) as made:
        found = call(made, "glob", pattern="neighbours/**")["paths"]
        assert found == [f"neighbours/0/{name}" for name in ("kernel.cpp", "plan.json", "task.py")]
        assert call(made, "read", path="neighbours/0/kernel.cpp")["text"] == "1\t// policy"
        assert (
            "read-only" in call(made, "write", path="neighbours/0/plan.json", content="")["error"]
        )


def test_a_neighbour_is_shown_with_the_plan_that_goes_with_its_source(tmp_path: Path) -> None:
    """A Triton kernel's record launches what was compiled; its source goes with the plan that the policy wrote."""
    written = Plan.from_json(triton_plan())
    record: Any = SimpleNamespace(
        origin="policy",
        language="triton",
        source=source_of(TRITON_SOURCE),
        plan=example_plan("cuda"),
        evidence={"written_plan": json.loads(written.to_json())},
    )
    near = [Neighbour(0.5, example_task("cuda"), 1.3, record)]
    task = example_task("cuda")
    with open_environment(task, Scripted(), tmp_path / "w", neighbours=near, shell=None) as made:
        workspace = made.tools.workspace
        assert workspace is not None
        assert Plan.from_json(str(workspace.text_of("neighbours/0/plan.json"))) == written
        plan, source = "neighbours/0/plan.json", "neighbours/0/kernel.py"
        assert call(made, "compile", source=source, plan=plan)["ok"]
        (candidate,) = made.tools.candidates.values()
        assert has_triton(candidate.plan)


def test_the_shell_may_change_what_a_policy_wrote_whatever_it_is_called(tmp_path: Path) -> None:
    with open_environment(TASK, Scripted(), tmp_path / "w") as made:
        probe = call(made, "shell", command="mkdir neighbours && echo a > neighbours/a")
        if "not run" in probe["output"]:
            pytest.skip(probe["output"])
        assert call(made, "write", path="task.cu", content="int a;\n")["ok"]
        script = "echo '//' >> task.cu && echo b >> neighbours/a && cat task.cu neighbours/a"
        assert call(made, "shell", command=script)["output"] == "int a;\n//\na\nb\n"
        assert call(made, "look")["ok"]
        if getattr(made.tools.shell, "protects", False):
            forged = "echo x > baselines.json; echo x > task.json; echo x > example/plan.json"
            assert "denied" in call(made, "shell", command=forged)["output"]
            assert '"room"' in str(
                made.tools.workspace and made.tools.workspace.text_of("baselines.json")
            )


def test_what_a_command_prints_is_cut_once_with_its_true_size(tmp_path: Path) -> None:
    with open_environment(TASK, Scripted(), tmp_path / "w") as made:
        output = call(made, "shell", command="head -c 1000000 /dev/zero | tr '\\0' x; false")[
            "output"
        ]
    if "not run" in output:
        pytest.skip(output)
    assert output.count("left out") == 1
    assert " of 1000000 bytes left out" in output
    assert len(output) < LOG_CHARACTERS + 200


def test_opening_a_folder_again_keeps_what_the_policy_wrote(tmp_path: Path) -> None:
    with open_environment(TASK, Scripted(), tmp_path / "w", shell=None) as first:
        assert call(first, "write", path="v1.cpp", content="mine")["ok"]
        call(first, "read", path="plan.json")
        assert call(first, "write", path="plan.json", content="{}")["ok"]
    (tmp_path / "w/SKILL.md").write_text("tampered with")
    with open_environment(TASK, Scripted(), tmp_path / "w", shell=None) as again:
        assert call(again, "read", path="v1.cpp")["text"] == "1\tmine"
        assert call(again, "read", path="plan.json")["text"] == "1\t{}"
        assert "tampered" not in call(again, "read", path="SKILL.md")["text"]


def test_the_shell_is_asked_its_output_is_cut_and_it_is_closed(tmp_path: Path) -> None:
    shell = FakeShell()
    with open_environment(
        TASK, Scripted(), tmp_path / "w", shell=lambda folder, bench: shell
    ) as made:
        answer = call(made, "shell", command="true", timeout_s=5)
        assert answer["ok"] and "of 100000 characters left out" in answer["output"]
        failed = call(made, "shell", command="false")
        assert (failed["ok"], failed["status"]) == (False, 3)
        assert not call(made, "shell", command="x", timeout_s=1e9)["ok"]
    assert shell.commands == [("true", 5), ("false", 60.0)]
    assert shell.closed


def test_no_command_outlasts_the_episode(tmp_path: Path) -> None:
    class Patient:
        name = "patient"

        def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
            return Turn("", (ToolCall.of("1", "shell", command="make", timeout_s=600),))

    shell = FakeShell()
    with open_environment(
        TASK, Scripted(), tmp_path / "w", shell=lambda folder, bench: shell
    ) as made:
        run_episode(Patient(), made.tools, Budget(50.0, turns=1), clock=lambda: 7.0)
    assert shell.commands == [("make", 50.0)]


def test_without_a_shell_it_says_so(environment: Environment) -> None:
    assert "no shell" in call(environment, "shell", command="ls")["error"]


def test_the_confined_shell_works_with_the_tools_on_the_same_files(tmp_path: Path) -> None:
    with open_environment(TASK, Scripted(), tmp_path / "w") as made:
        probe = call(made, "shell", command="echo 'int a;' > a.cpp; ls")
        if "not run" in probe["output"]:
            pytest.skip(probe["output"])
        assert "SKILL.md" in probe["output"]
        assert "read it before" in call(made, "write", path="a.cpp", content="x")["error"]
        assert call(made, "read", path="a.cpp")["text"] == "1\tint a;"
        assert call(made, "edit", path="a.cpp", old="a", new="b")["ok"]
        assert call(made, "write", path="sub/b.cpp", content="int c;\n")["ok"]
        script = (
            "cat a.cpp sub/b.cpp && echo '//' >> a.cpp && echo '//' >> sub/b.cpp && tail -n1 a.cpp"
        )
        assert call(made, "shell", command=script)["output"] == "int b;\nint c;\n//\n"
        assert "has changed" in call(made, "write", path="a.cpp", content="x")["error"]
        call(
            made,
            "shell",
            command="echo gone > SKILL.md; echo gone > example/kernel.cpp; rm task.py",
        )
        assert made.tools.workspace is not None
        if getattr(made.tools.shell, "protects", False):
            assert made.tools.workspace.text_of("SKILL.md") == skill("cpu")
            assert "gone" not in str(made.tools.workspace.text_of("example/kernel.cpp"))
            assert "task.py" in made.tools.workspace.paths()


def test_calls_of_one_turn_are_run_in_order(environment: Environment) -> None:
    """A source that is written in the same turn is there when it is compiled, and both answers are their own."""
    plan = example_plan("cpu", rows=ROWS)
    same = "the same id for all"
    calls = [
        ToolCall.of(same, "read", path="plan.json"),
        ToolCall.of(same, "write", path="plan.json", content=plan),
        ToolCall.of(same, "write", path="a.cpp", content=SOURCE),
        ToolCall.of(same, "write", path="b.cpp", content=SOURCE + "//"),
        ToolCall.of(same, "compile", source="a.cpp", plan="plan.json"),
        ToolCall.of(same, "compile", source="b.cpp", plan="plan.json"),
        ToolCall.of(same, "submit", reason="enough"),
        ToolCall.of(same, "look"),
    ]
    answers = [json.loads(m["content"]) for m in environment.tools.run(calls)]
    assert [a["ok"] for a in answers] == [True] * 7 + [False]
    assert answers[4]["candidate"] != answers[5]["candidate"]
    assert "ended" in answers[7]["error"]


def test_calls_are_recorded_together_that_are_run_together_and_no_others() -> None:
    def batch(*names: str) -> list[str]:
        return [call.name for call in next_batch([ToolCall.of("1", name) for name in names])]

    assert batch("compile", "compile", "look") == ["compile", "compile"]
    assert batch("sketch", "sketch", "sketch") == ["sketch"] * 3
    assert batch("write", "write", "compile") == ["write"], "files are written in order"


@pytest.mark.parametrize(
    ("source", "plan", "said"),
    [
        ("k.cu", "plan.json", "ends in .cpp or .cc"),
        ("k", "plan.json", "ends in .cpp or .cc"),
        ("no.cpp", "plan.json", "no such file"),
        ("../k.cpp", "plan.json", ".."),
        ("example/kernel.cpp", "no.json", "no such file"),
        ("example/kernel.cpp", "SKILL.md", "plan: not JSON"),
        ("example/kernel.cpp", "cuda.json", "the plan is for cuda"),
    ],
)
def test_what_cannot_be_compiled_says_why(
    environment: Environment, source: str, plan: str, said: str
) -> None:
    assert call(environment, "write", path="cuda.json", content=example_plan("cuda"))["ok"]
    assert said in call(environment, "compile", source=source, plan=plan)["error"]


@dataclass
class Curious:
    """Asks for the files that there are, then ends."""

    name: str = "curious"
    first: list[Message] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        if not self.first:
            self.first = list(messages)
            return Turn("", (ToolCall.of("1", "glob", pattern="**"),))
        self.paths = json.loads(messages[-1]["content"]).get("paths", [])
        return Turn("", (ToolCall.of("2", "submit", reason="seen"),))


@pytest.mark.parametrize("files", [True, False])
def test_a_search_gives_a_workspace_to_policies_that_work_with_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    policy = Curious()
    monkeypatch.setitem(registry.POLICIES, "curious", registry.Kind("curious", files=files))
    monkeypatch.setattr(registry, "make_policy", lambda _: policy)
    monkeypatch.setattr(Scripted, "waited_s", 0.0, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    setup: Any = SimpleNamespace(
        policy=PolicySpec("curious"), cache_dir=tmp_path / "cache", flags={}, memory=False
    )
    found = run_agent(TASK, Scripted(), setup, 60.0, None, lambda _: None)
    assert found.reason == "seen"
    assert [m["role"] for m in policy.first] == (["system", "user"] if files else ["user"])
    assert ("SKILL.md" in policy.paths) is files
    assert not list(tmp_path.glob("cuda-agent-task-*")), "the folder is gone with the episode"


@dataclass
class ByHand:
    """Writes a kernel that does not compile, one that is wrong, one that is right; then submits."""

    name: str = "by hand"
    answers: list[dict[str, Any]] = field(default_factory=list)

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn:
        if messages[-1]["role"] == "tool":
            self.answers.append(json.loads(messages[-1]["content"]))
        last = self.answers[-1] if self.answers else {}
        plan = {"source": "k.cpp", "plan": "plan.json"}
        steps: list[tuple[str, dict[str, Any]]] = [
            ("read", {"path": "plan.json"}),
            ("write", {"path": "k.cpp", "content": SOURCE.replace("float sum = 0.0f;", "")}),
            ("compile", plan),
            ("write", {"path": "k.cpp", "content": SOURCE.replace("1.0f + sum", "1.001f + sum")}),
            ("compile", plan),
            ("verify", {"candidate": last.get("candidate", "")}),
            ("edit", {"path": "k.cpp", "old": "1.001f + sum", "new": "1.0f + sum"}),
            ("compile", plan),
            ("verify", {"candidate": last.get("candidate", "")}),
            ("submit", {"reason": "this is a test"}),
        ]
        name, arguments = steps[len(self.answers)]
        return Turn("", (ToolCall.of(f"c{len(self.answers)}", name, **arguments),))


def test_a_kernel_by_hand_is_told_its_faults_until_it_is_right(
    tmp_path: Path, native_dir: Path
) -> None:
    """The example of SKILL.md, on a judge."""
    policy = ByHand()
    folders = {"scratch_dir": tmp_path / "scratch", "native_dir": native_dir}
    with (
        Judge(JudgeSettings("cpu", **folders, consent=True, threads=2)) as judge,
        open_environment(TASK, judge, tmp_path / "w", shell=None) as environment,
    ):
        found = run_episode(policy, environment.tools, Budget(1e9))
    _, _, broken, _, _, wrong, edited, compiled, right = policy.answers
    assert found.reason == "this is a test"
    line = next(i for i, text in enumerate(SOURCE.splitlines(), 1) if "sum += sums[i]" in text)
    assert broken["errors"][0].startswith(f"k.cpp:{line}: ")
    assert "was not declared in this scope" in broken["errors"][0]
    assert "sum += sums[i]" in broken["errors"][0]
    assert (wrong["ok"], wrong["status"]) == (False, "wrong")
    assert wrong["inputs"] == "standard normal numbers"
    (output,) = wrong["outputs"]
    assert output["name"] == "out0"
    assert output["wrong_elements"].endswith(f" of {ROWS * 2048}")
    assert output["first_wrong"][0].startswith("[0, ")
    assert output["error_ratio"] > 100
    assert edited["ok"] and compiled["ok"]
    assert right["status"] == "correct" and right["error_ratio"] < 2
    assert Plan.from_json(example_plan("cpu", rows=ROWS)).input_specs == TASK.inputs
