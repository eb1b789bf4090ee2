"""What a policy works in: a workspace for one task, the tools on it, and the first messages. Serving and training use
the same.

    with open_environment(task, bench, folder) as environment:
        run_episode(policy, environment.tools, budget)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.memory.recall import Neighbour
from cuda_agent_backend.agent.observation import LOG_CHARACTERS
from cuda_agent_backend.agent.protocol import Message
from cuda_agent_backend.agent.skill.document import skill
from cuda_agent_backend.agent.skill.example import example_files
from cuda_agent_backend.agent.skill.template import plan_template
from cuda_agent_backend.agent.task_source import task_source
from cuda_agent_backend.agent.tools.judge_protocol import Bench
from cuda_agent_backend.agent.tools.languages import LANGUAGES
from cuda_agent_backend.agent.tools.shell import Shell
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.workspace.folder import Workspace
from cuda_agent_backend.codegen.ir.device import CpuFacts, DeviceFacts, cpu_facts, gpu_facts
from kernel_cache import Record
from sandbox.task import flags
from sandbox.task.task import Task, TaskError

SYSTEM = """You are an expert in writing fast {language} kernels. You work on one task with tools, in a workspace \
folder, until a kernel of yours is accepted or you are sure that none can win. First read SKILL.md: it says what \
counts, what is refused, how a launch plan is written, and which habits make kernels fast. Everything is measured and \
verified by a judge that you cannot influence; only a correct kernel that is at least 5 % faster than both eager \
PyTorch and torch.compile is accepted. Work by calling tools; a message without a tool call ends the episode."""

USER = """Write a kernel for target {target} that beats the faster of eager and Inductor by 5 %.

The workspace holds: {files}. The task, as task.py has it:

```python
{task}```"""
TASK_CHARACTERS = 12_000


@dataclass
class Environment:
    """One task's workspace and tools. A context manager; closing ends the shell and leaves the files."""

    task: Task
    tools: Toolbox

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def first_messages(self) -> list[Message]:
        """What an episode begins with."""
        return first_messages(self.tools)

    def close(self) -> None:
        """End the shell, if it can be ended, and let go of the folder. Done twice, it does nothing."""
        close = getattr(self.tools.shell, "close", None)
        if callable(close):
            close()
        if self.tools.workspace is not None:
            self.tools.workspace.close()


def confined_shell(workspace: Workspace, bench: Bench) -> Shell:
    """The sandbox's shell, which may not change what the environment provides.

    Among other episodes of one judge its commands wait for their turn, as compilers do.
    """
    from sandbox.shell import shell
    from sandbox.shell.result import ShellLimits

    turn = getattr(bench, "beside", nullcontext)
    return shell.Shell(
        workspace.root,
        protected=lambda: workspace.provided,
        limits=ShellLimits(output_bytes=LOG_CHARACTERS),
        turn=turn,
    )


def open_environment(
    task: Task,
    bench: Bench,
    folder: Path | None,
    *,
    facts: DeviceFacts | CpuFacts | None = None,
    compile_jobs: int = 2,
    shell: Callable[[Workspace, Bench], Shell] | None = confined_shell,
    neighbours: Sequence[Neighbour] = (),
) -> Environment:
    """The environment of a task. folder: of the workspace, made where it is not there; what a policy wrote to it before
    stays, what the environment provides is written anew. None: kernel tools only, for policies that need no files.

    facts: of the device that is written for, by default this machine's. shell: opens the workspace's shell. neighbours:
    kernels that won on like tasks, which `look` offers. Raises OSError where the folder cannot be written, `TaskError`
    for a task that this torch cannot build.
    """
    if folder is None:
        tools = Toolbox(task, bench, facts, neighbours=neighbours, compile_jobs=compile_jobs)
        return Environment(task, tools)
    workspace = Workspace(folder)
    try:
        fill(workspace, task, facts)
        show_neighbours(workspace, neighbours)
        opened = shell(workspace, bench) if shell is not None else None
        tools = Toolbox(
            task,
            bench,
            facts,
            workspace=workspace,
            neighbours=neighbours,
            compile_jobs=compile_jobs,
            shell=opened,
        )
    except BaseException:
        workspace.close()
        raise
    return Environment(task, tools)


def fill(workspace: Workspace, task: Task, facts: DeviceFacts | CpuFacts | None = None) -> None:
    """Write what the environment provides. Raises OSError, `TaskError`."""
    provided = {
        "SKILL.md": skill(task.target),
        "task.py": task_source(task),
        "task.json": task.to_json() + "\n",
        "facts.json": json.dumps(known_facts(task, facts), indent=1, sort_keys=True) + "\n",
        **{f"example/{name}": text for name, text in example_files(task.target).items()},
    }
    for path, text in provided.items():
        workspace.provide(path, text)
    if "plan.json" not in workspace.paths():
        workspace.provide("plan.json", plan_template(task), protect=False)


def show_neighbours(workspace: Workspace, neighbours: Sequence[Neighbour]) -> None:
    """Write sources and plans that policies wrote for like tasks, to be read and copied from. Raises OSError."""
    suffixes = {language: suffix for suffix, language in reversed(LANGUAGES.items())}
    written = [
        n for n in neighbours if n.record.origin != "sketch" and n.record.language in suffixes
    ]
    for number, neighbour in enumerate(written):
        record, place = neighbour.record, f"neighbours/{number}"
        workspace.provide(f"{place}/kernel{suffixes[record.language]}", record.source)
        workspace.provide(f"{place}/plan.json", written_plan(record))
        with suppress(TaskError):  # of a torch that had other operators
            workspace.provide(f"{place}/task.py", task_source(neighbour.task))


def written_plan(record: Record) -> str:
    """The launch plan as the policy wrote it, which goes with the source; the record's own launches what came out."""
    written = record.evidence.get("written_plan")
    return record.plan if written is None else json.dumps(written, indent=1) + "\n"


def known_facts(task: Task, facts: DeviceFacts | CpuFacts | None) -> dict[str, Any]:
    """The device that is written for, and the user's flags. Ceilings are in baselines.json once they were measured."""
    device = facts or (gpu_facts() if task.target == "cuda" else cpu_facts())
    return {"target": task.target, "device": asdict(device), "flags": flags.current()}


def first_messages(tools: Toolbox) -> list[Message]:
    """The task in words. Without a workspace as canonical JSON, for policies that go by what `look` answers."""
    task, workspace = tools.task, tools.workspace
    if workspace is None:
        wanted = f"Write a kernel for target {task.target} that beats the faster of eager and Inductor by 5 %.\n"
        return [{"role": "user", "content": wanted + task.to_json()}]
    language = "CUDA C++ and Triton" if task.target == "cuda" else "C++ (OpenMP, SIMD)"
    text = workspace.text_of("task.py")
    shown = (
        text if isinstance(text, str) and len(text) <= TASK_CHARACTERS else "# long: read task.py\n"
    )
    files = ", ".join(workspace.paths())
    user = USER.format(target=task.target, files=files, task=shown)
    return [
        {"role": "system", "content": SYSTEM.format(language=language)},
        {"role": "user", "content": user},
    ]
