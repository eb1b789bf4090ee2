"""The shell tool. The shell itself, with what confines it, is the sandbox's; here is what an episode asks of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from cuda_agent_backend.agent.observation import cut
from cuda_agent_backend.agent.tools.tool import Answer, Spec, Tool, failed, text

DEFAULT_S, LONGEST_S, SHORTEST_S = 60.0, 600.0, 0.1

SHELL = Spec(
    "shell",
    "Run a command in a persistent shell in the workspace folder (no network, no GPU). State such as the current "
    "folder and variables stays from one call to the next.",
    {
        "command": text("what to run, as for bash", minLength=1),
        "timeout_s": {
            "type": "number",
            "description": f"seconds after which it is stopped; {DEFAULT_S:g} where it is not given",
            "minimum": SHORTEST_S,
            "maximum": LONGEST_S,
        },
    },
    ("command",),
)


class ShellResult(Protocol):
    """What came of a command. status: exit status, None where it was stopped."""

    @property
    def output(self) -> str: ...
    @property
    def status(self) -> int | None: ...
    @property
    def timed_out(self) -> bool: ...


class Shell(Protocol):
    """A shell that keeps its state between commands."""

    def run(self, command: str, timeout_s: float) -> ShellResult:
        """Run one command; standard output and error come together."""
        ...


def shell_tool(shell: Shell | None, seconds_left: Callable[[], float] = lambda: math.inf) -> Tool:
    """The tool on a shell; without one it says so. seconds_left: of the episode, which no command outlasts."""

    def run(command: str, timeout_s: float = DEFAULT_S) -> Answer:
        if shell is None:
            return failed(
                "there is no shell in this episode; the file tools and compile work without one"
            )
        timeout_s = max(SHORTEST_S, min(timeout_s, seconds_left()))
        result = shell.run(command, timeout_s)
        answer: Answer = {
            "ok": result.status == 0 and not result.timed_out,
            "status": result.status,
            "output": cut(result.output),
        }
        if result.timed_out:
            answer["error"] = f"stopped after {timeout_s:g} s; what it had printed is in output"
        elif result.status != 0:
            answer["error"] = f"exit status {result.status}"
        return answer

    return Tool(SHELL, run)
