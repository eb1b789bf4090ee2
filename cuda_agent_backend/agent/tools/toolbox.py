"""All tools of an episode: calls in, messages out."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cuda_agent_backend.agent.observation import cut
from cuda_agent_backend.agent.protocol import (
    BadArguments,
    Message,
    Schema,
    ToolCall,
    parse_arguments,
    tool_message,
)
from cuda_agent_backend.agent.tools.files import FILE_SPECS, file_tools
from cuda_agent_backend.agent.tools.kernel_specs import COMPILE, COMPILING, KERNEL_SPECS
from cuda_agent_backend.agent.tools.kernel_tools import KernelWork
from cuda_agent_backend.agent.tools.shell import SHELL, Shell, shell_tool
from cuda_agent_backend.agent.tools.tool import Answer, Tool, failed

MOST_REASON = 2000
"""Characters of a reason or an error."""


@dataclass
class Toolbox(KernelWork):
    """Tools bound to one task, and what the episode has brought so far.

    compile_jobs: compilers that one turn runs at once. workspace: where the file tools work; without one there are the
    kernel tools alone, and no `compile`. shell: what runs commands there. seconds_left: of the episode.
    """

    compile_jobs: int = 2
    shell: Shell | None = None
    seconds_left: Callable[[], float] = lambda: math.inf

    def __post_init__(self) -> None:
        tools = self.kernel_tools()
        if self.workspace is not None:
            tools += [*file_tools(self.workspace), shell_tool(self.shell, self._left)]
        self.tools: dict[str, Tool] = {tool.spec.name: tool for tool in tools}

    @property
    def schemas(self) -> list[Schema]:
        """Of all tools, in the OpenAI function format."""
        return [tool.spec.schema for tool in self.tools.values()]

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Run ``calls`` in order; neighbouring ones that make candidates compile side by side."""
        answers: list[Answer] = []
        for together, group in itertools.groupby(calls, self._side_by_side):
            some = list(group)
            if together and len(some) > 1:
                with ThreadPoolExecutor(max_workers=max(1, self.compile_jobs)) as pool:
                    answers += pool.map(self._guarded, some)
            else:
                answers += map(self._guarded, some)
        return [tool_message(c, answer) for c, answer in zip(calls, answers, strict=True)]

    def _side_by_side(self, call: ToolCall) -> bool:
        return any(call.name == spec.name for spec in COMPILING)

    def _guarded(self, call: ToolCall) -> Answer:
        tool = self.tools.get(call.name)
        if tool is None:
            return failed(f"no tool {call.name[:100]!r}; there are: {', '.join(self.tools)}")
        if self.finished is not None:
            return failed("not run: the episode has ended")
        try:
            started = self.worked()
            answer = _shortened(tool.run(**parse_arguments(call, tool.spec.schema)))
            return {**answer, "seconds": round(self.worked() - started, 3)}
        except (OSError, MemoryError, RecursionError) as error:
            return failed(_trouble(call.name, error))
        except BadArguments as error:
            return failed(str(error))

    def _left(self) -> float:
        return self.seconds_left()  # the episode sets it after the tools are made

    def worked(self) -> float:
        """A clock, in seconds, that stands still while others have their turn on the device."""
        return time.monotonic() - float(getattr(self.bench, "waited_s", 0.0))


def _trouble(name: str, error: OSError | MemoryError | RecursionError) -> str:
    """What a machine's limit that a call has met means for who called. Anything else that is raised is a bug."""
    if isinstance(error, MemoryError):
        return f"{name}: out of memory; ask for less at once"
    if isinstance(error, RecursionError):
        return f"{name}: nested too deep; write it flatter"
    return f"{name}: {error}; see what is in the way (a full disk, a link, a folder), remove it, and try again"


def _shortened(answer: Answer) -> Answer:
    """With reasons that are meant as a line cut to one; a template's first error may be a page."""
    long = {
        k: cut(v, MOST_REASON) for k in ("error", "reason") if isinstance(v := answer.get(k), str)
    }
    return answer | long


def tool_schemas(files: bool = True) -> list[Schema]:
    """The schemas of all tools there are; without ``files`` those of an episode that has no workspace."""
    more = (COMPILE, *FILE_SPECS, SHELL) if files else ()
    return [spec.schema for spec in (*KERNEL_SPECS, *more)]
