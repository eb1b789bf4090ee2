"""The environment in the shape that TRL's ``GRPOTrainer(environment_factory=...)`` takes, and others with it.

    GRPOTrainer(..., environment_factory=partial(KernelEnvironment, world))

Public methods are the tools that a policy calls. They have the names, arguments and answers of the agent's own tools,
for they are these. `reset` and `get_reward` are the trainer's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from cuda_agent_backend.agent.protocol import ToolCall, Turn
from cuda_agent_backend.agent.tools.kernel_specs import (
    INSPECT,
    LOOK,
    PROFILE,
    SKETCH,
    SUBMIT,
    VERIFY,
)
from cuda_agent_backend.agent.tools.tool import Spec
from trainer.environment.session import JUDGEMENTS, TURNS, Session
from trainer.rollout.world import World

P = ParamSpec("P")
Method = Callable[Concatenate["KernelEnvironment", P], str]


def _tool(spec: Spec) -> Callable[[Method[P]], Method[P]]:
    """A tool's method: documented as the spec has it, and answering wrong arguments as the agent's protocol does."""

    def made(method: Method[P]) -> Method[P]:
        signature = inspect.signature(method)

        @wraps(method)
        def checked(self: KernelEnvironment, /, *args: P.args, **arguments: P.kwargs) -> str:
            try:
                signature.bind(self, *args, **arguments)
            except TypeError:
                return self._called(spec.name, arguments)
            return method(self, *args, **arguments)

        told = [f"    {name}: {value['description']}" for name, value in spec.properties.items()]
        checked.__doc__ = "\n".join([spec.description, *(["\nArgs:", *told] if told else [])])
        return checked

    return made


class KernelEnvironment:
    """Writes kernels: one episode after another, each begun by `reset` and ended by `get_reward` at the latest.

    world: where episodes are played; it serves any number of environments. judgements, turns: of an episode, where its
    row says nothing else; here each call is a turn. A context manager, which closes what an episode holds.
    """

    def __init__(self, world: World, judgements: int = JUDGEMENTS, turns: int = TURNS) -> None:
        self._session = Session(world, judgements, turns)
        self._calls = 0

    def __enter__(self) -> KernelEnvironment:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def reset(
        self, task: str, seed: int | None = None, judgements: int | None = None, **row: Any
    ) -> str | None:
        """Begin an episode, as a row of the data set has it; what follows the row's prompt. Other columns are ignored.

        task: a name that the world has. seed: of the noise in what a measured world answers. judgements: its budget.
        Raises ValueError for what cannot be played. A world that fails is an episode without a reward.
        """
        self._calls = 0
        messages = self._session.start(task, seed or 0, judgements)
        return "\n\n".join(str(message["content"]) for message in messages)

    @_tool(LOOK)
    def look(self) -> str:
        """See `LOOK`."""
        return self._called("look", {})

    @_tool(SKETCH)
    def sketch(self, schedule: list[dict[str, int | str]]) -> str:
        """See `SKETCH`."""
        return self._called("sketch", {"schedule": schedule})

    @_tool(INSPECT)
    def inspect(self, candidate: str) -> str:
        """See `INSPECT`."""
        return self._called("inspect", {"candidate": candidate})

    @_tool(VERIFY)
    def verify(self, candidate: str) -> str:
        """See `VERIFY`."""
        return self._called("verify", {"candidate": candidate})

    @_tool(PROFILE)
    def profile(self, candidate: str) -> str:
        """See `PROFILE`."""
        return self._called("profile", {"candidate": candidate})

    @_tool(SUBMIT)
    def submit(self, candidate: str = "", reason: str = "") -> str:
        """See `SUBMIT`."""
        given = {"candidate": candidate, "reason": reason}
        return self._called("submit", {name: value for name, value in given.items() if value})

    def get_reward(self) -> float:
        """End the episode; -1, 1, 2 or 3, from the verdict that promotes.

        Not a number where nothing is known of the policy, as when the machine failed or was too busy for a verdict: TRL
        leaves such an episode out. Raises RuntimeError where no episode was begun.
        """
        self._session.take(Turn())  # says nothing where it has ended
        outcome = self._session.outcome
        reward = outcome.reward if outcome is not None else None
        return math.nan if reward is None else float(reward)

    def _called(self, name: str, arguments: dict[str, Any]) -> str:
        """The answer to one call. What the environment says besides, as that the time is up, follows in lines of its
        own."""
        self._calls += 1
        call = ToolCall.of(f"call_{self._calls}", name, **arguments)
        return "\n".join(str(m["content"]) for m in self._session.take(Turn("", (call,))))
