"""Where episodes are played: tasks by name, and tools on them. Tables and the judge stand behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from cuda_agent_backend.agent.environment import first_messages
from cuda_agent_backend.agent.judgements import is_judgement
from cuda_agent_backend.agent.protocol import Message, Schema, ToolCall
from trainer.world.replay_tools import NOT_MEASURED


class World(Protocol):
    """tasks: to train on; test_tasks: none of which is a neighbour of those. side_by_side: episodes played at once.

    A world may have ``validation_tasks`` too, which are neither (see `validation_tasks_of`).
    """

    @property
    def tasks(self) -> Sequence[str]: ...

    @property
    def test_tasks(self) -> Sequence[str]: ...

    @property
    def side_by_side(self) -> int: ...

    def tools(self, task: str, seed: int) -> Any:
        """Tools of a new episode (see `agent.tools.toolbox.Toolbox`). seed: of the noise of what they answer.

        Raises `WorldFailed` where the episode cannot be played, which says nothing of the policy.
        """
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


def family_in(world: World, task: str) -> str:
    """The family of a task, by the world's ``family(task)``; the task's own name in a world that has no such method."""
    known = getattr(world, "family", None)
    return task if known is None else str(known(task))


def validation_tasks_of(world: World) -> Sequence[str]:
    """Tasks that are never trained on and choose a stage's checkpoint; none in a world that does not know of them."""
    return tuple(getattr(world, "validation_tasks", ()))


class WorldFailed(Exception):
    """An environment died, or cannot be made: what happened, and where."""


class Counted:
    """An episode's tools, with the judgements that were asked for counted (see `is_judgement`). A schedule that a table
    does not have, as it was never tried, is none. seconds: of all calls, by the tools' clock. All else is theirs."""

    def __init__(self, tools: Any, judgements: int) -> None:
        self._tools, self._most = tools, judgements
        self.judgements = self.failures = 0
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tools, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_tools", "_most", "judgements", "failures", "seconds"):
            super().__setattr__(name, value)
        else:
            setattr(self._tools, name, value)

    @property
    def schemas(self) -> Sequence[Schema]:
        """See `Toolbox`."""
        schemas: Sequence[Schema] = self._tools.schemas
        return schemas

    def first(self) -> list[Message]:
        """What the episode begins with: the task, and the budget that it has."""
        made = getattr(self._tools, "first", None)
        messages = made() if made is not None else first_messages(self._tools)
        budget = f"Budget: {self._most} judgement{'s' if self._most != 1 else ''}.\n"
        last = messages[-1]
        return [*messages[:-1], {**last, "content": budget + str(last["content"])}]

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        """See `Toolbox`."""
        profiled = set(self._tools.profiles)
        clock = getattr(self._tools, "worked", time.monotonic)
        started = clock()
        answers: list[Message] = self._tools.run(calls)
        self.seconds += clock() - started
        for call, answer in zip(calls, answers, strict=True):
            content = str(answer["content"])
            self.failures += '"error"' in content
            tried = NOT_MEASURED not in content
            self.judgements += tried and is_judgement(call, content, profiled)
        return answers
