"""The environment as an OpenEnv server. Needs the extra ``openenv``.

A client's session is one WebSocket connection, with an environment of its own; all share one world.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from pydantic import ConfigDict, Field

from cuda_agent_backend.agent.protocol import Message
from trainer.environment.actions import BadAction, turn_of
from trainer.environment.session import Session
from trainer.rollout.world import World

NAME = "cuda_agent"
ABOUT = "Writing kernels that beat eager PyTorch and Inductor, with the tools of cuda_agent's own agent."
NOT_BEGUN = (
    "no episode was begun in this session: reset it first (a session is one connection to /ws)"
)
CALLS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "function": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "arguments": {}},
                "required": ["name"],
            },
        },
        "required": ["function"],
    },
}


class KernelAction(Action):
    """One message of the policy, in the OpenAI format. What does not fit is answered by an observation."""

    model_config = ConfigDict(extra="allow")

    content: Any = Field(default="", description="text", json_schema_extra={"type": "string"})
    tool_calls: Any = Field(default=(), description="calls of tools", json_schema_extra=CALLS)
    truncated: Any = Field(
        default=False,
        description="whether the policy was cut off; its calls are then not run",
        json_schema_extra={"type": "boolean"},
    )


class KernelObservation(Observation):
    """What the environment says. ``reward`` comes with ``done``; null then where it says nothing of the policy."""

    messages: list[dict[str, Any]] = Field(
        default_factory=list, description="new messages, in the OpenAI format"
    )
    tools: list[dict[str, Any]] = Field(
        default_factory=list, description="schemas of the tools, with the first observation"
    )
    error: str = Field(default="", description="why the action was no turn; nothing has happened")
    stop: str = Field(default="", description="why the episode ended, once it is done")


class KernelState(State):
    """Where an episode stands."""

    task: str = Field(default="", description="its name")
    judged: int = Field(default=0, description="judgements that were asked for")
    stop: str = Field(default="", description="why the episode ended; empty while it goes on")


class KernelServerEnvironment(Environment[KernelAction, KernelObservation, KernelState]):
    """One session: episodes one after another in a world that all sessions share."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, world: World, judgements: int, turns: int) -> None:
        super().__init__()
        self._world, self._session = world, Session(world, judgements, turns)
        self._state = KernelState()
        self._calls = 0

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        split: str = "train",
        index: int | None = None,
        judgements: int | None = None,
        **row: Any,
    ) -> KernelObservation:
        """Begin an episode: of a task by name, or by its index in a split, or one drawn from the split by the seed.

        Raises ValueError for what cannot be played; the session lives on.
        """
        chance = random.Random(seed)
        if task is None:
            every = self.list_tasks(split)
            task = self.get_task(split, chance.randrange(len(every)) if index is None else index)
        noise = chance.randrange(1 << 30) if seed is None else seed
        self._calls = 0
        messages = self._session.start(task, noise, judgements)
        self._state = KernelState(episode_id=episode_id, task=task)
        return self._seen(messages, list(self._session.schemas))

    def step(
        self, action: KernelAction, timeout_s: float | None = None, **row: Any
    ) -> KernelObservation:
        """Take a turn. One that does not fit is answered by what is wrong with it, and nothing has happened."""
        if not self._session.started:
            return KernelObservation(error=NOT_BEGUN)
        turn = turn_of(action.model_dump(exclude={"metadata"}), self._calls + 1)
        if isinstance(turn, BadAction):
            seen = self._seen([])
            seen.error = turn.reason
            return seen
        self._calls += len(turn.calls)
        self._state.step_count += 1
        return self._seen(self._session.take(turn))

    @property
    def state(self) -> KernelState:
        """Where the episode stands."""
        outcome = self._session.outcome
        self._state.judged = self._session.judged
        self._state.stop = outcome.stop if outcome is not None else ""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """What this is."""
        return EnvironmentMetadata(name=NAME, description=ABOUT)

    def list_splits(self) -> list[str]:
        """Of the world's tasks: to train on, and those that are held out."""
        return ["train", "test"]

    def list_tasks(self, split: str) -> Sequence[str]:
        """The names of a split's tasks. Raises ValueError where there are none."""
        every = {"train": self._world.tasks, "test": self._world.test_tasks}.get(split, ())
        if not every:
            raise ValueError(f"no tasks in split {split!r}; there are: train, test")
        return list(every)

    def num_tasks(self, split: str) -> int:
        """How many they are."""
        return len(self.list_tasks(split))

    def get_task(self, split: str, index: int) -> str:
        """The name of one. Raises IndexError where there is none."""
        return self.list_tasks(split)[index]

    def close(self) -> None:
        """End the episode; the world lives on."""
        self._session.close()

    def _seen(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> KernelObservation:
        outcome = self._session.outcome
        return KernelObservation(
            messages=messages,
            tools=tools or [],
            done=outcome is not None,
            reward=outcome.reward if outcome is not None else None,
            stop=outcome.stop if outcome is not None else "",
        )


def app_of(world: World, sessions: int, judgements: int, turns: int) -> Any:
    """The server, as an ASGI application. sessions: at once, at most."""
    made = partial(KernelServerEnvironment, world, judgements, turns)
    return create_fastapi_app(
        made,
        KernelAction,
        KernelObservation,
        max_concurrent_envs=sessions,
        env_name=NAME,
        state_cls=KernelState,
        mode="simulation",
    )
