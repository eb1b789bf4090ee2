"""An episode whose turns somebody else takes: the loop of a training library, or a client of a server.

It is the episode of `loop`, step for step, with the same messages. It only waits where that one asks its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from cuda_agent_backend.agent.loop import Budget, Episode, EpisodeResult
from cuda_agent_backend.agent.protocol import Message, Policy, Stopped, Turn
from cuda_agent_backend.agent.trajectories.events import Ended

NOBODY = cast(Policy, None)
"""There is no policy to ask."""


class DrivenEpisode(Episode):
    """Goes on with each turn that it is given, until it wants the next one.

    tools: of one task, new. budget, clock: as of `run_episode`. first: what the conversation begins with. ended: what
    the episode came to; None while it goes on.
    """

    def __init__(
        self, tools: Any, budget: Budget, clock: Callable[[], float], first: Sequence[Message]
    ) -> None:
        super().__init__(NOBODY, tools, budget, lambda _: None, clock, None, None)
        self.ended: EpisodeResult | None = None
        self._asked: float | None = None
        self.say_first(first)
        self._go_on(None)

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""
        return self.conversation.messages

    def ask(self) -> Ended | None:
        """Wait for the next turn."""
        self._asked = self.used
        return None

    def give(self, turn: Turn | Stopped) -> list[Message]:
        """Take a turn, or hear why there is none; what the environment says to it.

        Raises RuntimeError where the episode has ended. What a tool raises, which is a bug, ends the episode.
        """
        if self._asked is None or self.ended is not None:
            raise RuntimeError("the episode has ended: it takes no turn")
        before, self._asked = self._asked, None
        own = len(self.messages) + isinstance(turn, Turn)
        self._go_on(self.take(turn, before))
        return list(self.messages[own:])

    def _go_on(self, end: Ended | None) -> None:
        try:
            while end is None and self._asked is None:
                end = self.step()
        except BaseException as error:
            self.ended = self.result("bug", f"a tool failed: {type(error).__name__}: {error}")
            raise
        if end is not None:
            self.note(end)
            self.ended = self.result(end.stop, end.reason)
