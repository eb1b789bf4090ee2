"""The budget of a policy that nobody told one: as many judgements as its words say that it has.

In training an episode ends with the budget that it was told. A search has seconds instead, of which a policy that reads
no clock would leave nothing to whoever comes after it. So here the same is shown as in training: after the last
judgement the words that the time is up, and then turns in which nothing but a submission is carried out. Turns have an
end as in training, too, for one that takes the likeliest words may do the same for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuda_agent_backend.agent.judgements import Tally, is_judgement
from cuda_agent_backend.agent.policies.trained.rendering import UNTOLD, told_budget
from cuda_agent_backend.agent.protocol import LAST_TURNS, OUT_OF_TIME, Message, ToolCall, Turn

TURNS = 72
"""Of an episode of training, unless that is configured otherwise: a schedule and its timing for each of 30 judgements,
and some more."""
USED_UP = f"{UNTOLD} judgements are used up"
NO_TURN = f"{TURNS} turns are used up"
_OVER: Message = {"role": "user", "content": OUT_OF_TIME}
_MADE = '"ok": true'


class Allowance:
    """One conversation's. Where it was told a budget, whoever told it ends the episode, and nothing is done here.

    first: what it begins with. begun: messages that there were when the policy was first asked; what was judged before
    is another policy's.
    """

    def __init__(self, first: Sequence[Message], begun: int = 0) -> None:
        task = next((str(m.get("content", "")) for m in first if m["role"] == "user"), "")
        told = told_budget(task) is not None
        self._left: float = math.inf if told else UNTOLD
        self._turns: float = math.inf if told else TURNS
        self._begun, self._seen = begun, 0
        self._tally = Tally()
        self._over = self._ended = False
        """Whether the policy has heard that the time is up, and whether nobody but us has said so."""

    def hear(self, messages: Sequence[Message]) -> list[Message]:
        """What the policy hears of messages that are not its own: that the time is up is said once, by whomever."""
        for message in messages:
            self._follow(message)
        others = [m for m in messages if m["role"] != "user" or m.get("content") != OUT_OF_TIME]
        if self._over:
            return others
        told = len(others) < len(messages)
        self._over = told or self._left <= 0
        if not self._over or told:
            return list(messages)
        self._ended, self._turns = True, min(self._turns, LAST_TURNS)
        return [*messages, _OVER]

    def say(self, message: Message) -> None:
        """Take in what the policy said."""
        self._turns -= self._seen >= self._begun
        self._follow(message)

    @property
    def why_spent(self) -> str:
        """Why there is no further turn; "" where there is one. Where nothing was timed there is nothing to submit."""
        if self._ended and (self._turns <= 0 or not self._tally.profiled):
            return USED_UP
        return NO_TURN if self._turns <= 0 else ""

    def ends(self, turn: Turn) -> bool:
        """Whether a turn is the end, since it is a last one and no submission."""
        last = self._ended and not turn.truncated
        return last and any(call.name != "submit" for call in turn.calls)

    def room(self, calls: Sequence[ToolCall]) -> int:
        """How many of a message's calls there are judgements for. The others would not be run in training either."""
        left = self._left
        for number, call in enumerate(calls, 1):
            left -= is_judgement(call, _MADE, self._tally.profiled)
            if left <= 0:
                return number
        return len(calls)

    def _follow(self, message: Message) -> None:
        counts = self._tally.follow(message) and self._seen >= self._begun
        self._left -= counts
        self._seen += 1
