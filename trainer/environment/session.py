"""Episodes in a world, one after another, each driven by whoever has the policy. No training library is known here.

session = Session(world)
messages = session.start(task)
while session.outcome is None:
    messages = session.take(turn_for(messages))
session.outcome.reward
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent_backend.agent.driven import DrivenEpisode
from cuda_agent_backend.agent.environment import Environment
from cuda_agent_backend.agent.loop import ENDED, Budget
from cuda_agent_backend.agent.protocol import Message, Schema, Stopped, Turn, tool_message
from cuda_agent_backend.agent.tools.tool import failed
from cuda_agent_backend.agent.trajectories.events import Stop
from trainer.ppo.episode import ENDS
from trainer.rollout.world import Counted, World, WorldFailed, validation_tasks_of

JUDGEMENTS, TURNS = 10, 200
"""What an episode may take where nobody says otherwise."""
SHOWN = 3
"""Names of tasks in an error."""


@dataclass(frozen=True)
class Outcome:
    """What an episode came to.

    stop: why it ended, in the agent's words; reason: one line. reward: C7 (-1, 1, 2, 3), from the verdict that
    promotes; None where the episode says nothing of its policy, as when the machine failed or the judge could not say.
    """

    stop: Stop
    reason: str
    reward: float | None


class Session:
    """One episode at a time. What an episode holds, such as a shell, is closed as it ends, however it ends.

    world: where it is played, which may serve many sessions. judgements: of an episode, unless it is told another
    number. turns: of an episode, at most. Threads that use one session wait for each other.
    """

    def __init__(self, world: World, judgements: int = JUDGEMENTS, turns: int = TURNS) -> None:
        if min(judgements, turns) < 1:
            raise ValueError(
                f"an episode has {judgements} judgements and {turns} turns; at least 1"
            )
        self.world, self.judgements, self.turns = world, judgements, turns
        self.task = ""
        self.outcome: Outcome | None = None
        self._tools: Any = None
        self._episode: DrivenEpisode | None = None
        self._lock = threading.RLock()

    @property
    def started(self) -> bool:
        """Whether there was an episode."""
        return bool(self.task)

    @property
    def schemas(self) -> Sequence[Schema]:
        """The tools of the episode, in the OpenAI function format; none where it has no environment."""
        return self._tools.schemas if self._tools is not None else ()

    @property
    def judged(self) -> int:
        """Judgements that the episode has asked for."""
        return self._tools.judgements if self._tools is not None else 0

    def start(self, task: str, seed: int = 0, judgements: int | None = None) -> list[Message]:
        """Begin an episode; its first messages. One that goes on is ended.

        task: a name that the world has. seed: of the noise in what a measured world answers. judgements: its budget.
        A world that fails ends the episode: its outcome and the one message say why. Raises ValueError for what
        cannot be played.
        """
        with self._lock:
            self.close()
            return self._started(self._known(task), seed, judgements)

    def _started(self, task: str, seed: int, judgements: int | None) -> list[Message]:
        most = self.judgements if judgements is None else judgements
        if most < 1:
            raise ValueError(f"an episode has {most} judgements; at least 1")
        self.task, self.outcome, self._tools = task, None, None
        try:
            tools = self._tools = Counted(self.world.tools(task, seed), most)
            budget = Budget(most - 0.5, self.turns)  # a judgement is a second
            self._episode = DrivenEpisode(
                tools, budget, lambda: float(tools.judgements), tools.first()
            )
            return list(self._episode.messages)
        except (WorldFailed, OSError) as error:
            self._end(Outcome("infrastructure", str(error), None))
            return [{"role": "user", "content": str(error)}]
        except BaseException as error:
            self._end(Outcome("bug", f"{type(error).__name__}: {error}", None))
            raise

    def take(self, turn: Turn | Stopped) -> list[Message]:
        """Go on with a policy's turn, or with why it has none; what the environment says to it.

        After its end nothing is run. Raises RuntimeError where no episode was begun. What a tool raises is a bug, which
        ends the episode.
        """
        if not self.started:
            raise RuntimeError("no episode was begun: start one first")
        with self._lock:
            return self._taken(turn)

    def _taken(self, turn: Turn | Stopped) -> list[Message]:
        if self._episode is None or self.outcome is not None:
            return _all_answered(turn, ENDED)
        try:
            said = self._episode.give(turn)
        except (WorldFailed, OSError) as error:
            self._end(Outcome("infrastructure", str(error), None))
            return _all_answered(turn, str(error))
        except BaseException as error:
            self._end(Outcome("bug", f"{type(error).__name__}: {error}", None))
            raise
        if (result := self._episode.ended) is not None:
            counts = ENDS[result.stop] != "infrastructure"
            self._end(Outcome(result.stop, result.reason, result.reward if counts else None))
        return said

    def close(self) -> None:
        """End the episode, if one goes on, and give up what it holds. Done twice, it does nothing."""
        with self._lock:
            if self.started and self.outcome is None:
                self._end(Outcome("interrupted", "the episode was closed", None))

    def _known(self, task: str) -> str:
        world = self.world
        names = [*world.tasks, *validation_tasks_of(world), *world.test_tasks]
        if task not in names:
            some = ", ".join(names[:SHOWN])
            raise ValueError(f"no task {task!r} in this world; it has {len(names)}, such as {some}")
        return task

    def _end(self, outcome: Outcome) -> None:
        self.outcome, self._episode = outcome, None
        if self._tools is not None:
            Environment(self._tools.task, self._tools).close()


def _all_answered(turn: Turn | Stopped, reason: str) -> list[Message]:
    """Every call of a turn, none of which was run, and why."""
    calls = turn.calls if isinstance(turn, Turn) else ()
    return [tool_message(call, failed(reason)) for call in calls]
