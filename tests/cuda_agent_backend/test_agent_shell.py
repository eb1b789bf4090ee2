"""The sandbox's shell as a tool of an episode, beside the file tools in one workspace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.agent.protocol import ToolCall, parse_arguments
from cuda_agent_backend.agent.tools.files import file_tools
from cuda_agent_backend.agent.tools.shell import shell_tool
from cuda_agent_backend.agent.tools.tool import Answer
from cuda_agent_backend.agent.workspace.folder import Workspace
from sandbox.isolation.confine import offered
from sandbox.isolation.mechanisms import Isolation
from sandbox.shell.shell import Shell

needs_isolation = pytest.mark.skipif(
    offered().level != "full", reason=f"this machine: {offered().describe()} {offered().why}"
)


class Tools:
    """File tools and the shell on one folder."""

    def __init__(self, workspace: Workspace, shell: Shell) -> None:
        self.workspace, self.shell = workspace, shell
        self._tools = {t.spec.name: t for t in [*file_tools(workspace), shell_tool(shell)]}

    def __call__(self, name: str, **arguments: Any) -> Answer:
        tool = self._tools[name]
        answer = tool.run(**parse_arguments(ToolCall.of("1", name, **arguments), tool.spec.schema))
        json.dumps(answer, allow_nan=False)
        return answer


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    with Workspace(tmp_path / "work") as workspace:
        for name in ("SKILL.md", "task.py", "task.json", "facts.json"):
            workspace.provide(name, f"{name}\n")
        with Shell(workspace.root) as shell:
            yield Tools(workspace, shell)


@needs_isolation
def test_the_shell_and_the_file_tools_see_each_others_files(tools: Tools) -> None:
    assert tools("write", path="sub/a.cpp", content="int main() { return 3; }\n")["ok"]
    ran = tools("shell", command="cd sub && g++ a.cpp -o a && ./a; echo status $? > said")
    assert ran["ok"], ran
    assert "status 3" in json.dumps(tools("read", path="sub/said"))
    assert tools("shell", command="pwd; echo 'int x;' > a.cpp")["output"].endswith("/sub\n")
    stale = tools("write", path="sub/a.cpp", content="lost")
    assert not stale["ok"] and "changed since" in stale["error"]
    assert tools("read", path="sub/a.cpp")["ok"]
    assert tools("write", path="sub/a.cpp", content="int y;\n")["ok"]
    assert tools("shell", command="cat a.cpp && rm a.cpp && ls")["output"] == "int y;\na\nsaid\n"


@needs_isolation
def test_what_the_environment_provides_stays_whatever_the_shell_tries(tools: Tools) -> None:
    if not tools.shell.protects:
        pytest.skip("only root can keep files from a process that writes to their folder")
    tools.shell.run("echo forged > baselines.json")
    tools.workspace.provide("baselines.json", "measured\n")  # as `look` does, afterwards
    tools("shell", command="for f in *; do echo forged > $f; rm -f $f; mv x $f; done; chmod u+w .")
    for name in ("SKILL.md", "task.py", "task.json", "facts.json"):
        assert tools.workspace.text_of(name) == f"{name}\n"
    assert tools.workspace.text_of("baselines.json") == "measured\n"


@needs_isolation
def test_links_that_the_shell_makes_lead_tools_nowhere(tools: Tools) -> None:
    tools("shell", command="ln -s /etc/shadow link; ln -s / root; mkfifo pipe; ln task.py hard")
    for path in ("link", "root/etc/shadow", "pipe"):
        assert not tools("read", path=path)["ok"]
    assert not tools("write", path="root/tmp/x", content="x")["ok"]


@needs_isolation
def test_what_came_of_a_command_is_told(tools: Tools) -> None:
    for seconds in (0.5, 5.0, 60.0):  # more, where it had printed nothing in time
        stopped = tools("shell", command="echo before; sleep 600", timeout_s=seconds)
        assert not stopped["ok"] and "stopped" in stopped["error"]
        if stopped["output"].startswith("before\n"):
            break
    assert stopped["output"].startswith("before\n")  # the word alone is in the note on its end, too
    left = tools("shell", command="exit 5")
    assert (left["ok"], left["status"]) == (False, 5) and "fresh shell" in left["output"]


def test_where_a_shell_cannot_be_confined_its_answers_say_why(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace, Shell(tmp_path, isolation=Isolation()) as shell:
        answer = Tools(workspace, shell)("shell", command="touch ran")
    assert not answer["ok"] and "Landlock" in answer["output"]
    assert not (tmp_path / "ran").exists()
