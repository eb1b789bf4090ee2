"""What a trajectory file says: a header, then one event a line, in the order in which things happened.

An event is whole or not there: all that one batch of tool calls brought (answers, candidates, verdicts) is one line, so
that a process killed at any point leaves a file that says exactly what was done. Everything here is a value; reading
and writing is in `codec` and `file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from cuda_agent_backend.agent.gains import Gains
from cuda_agent_backend.agent.protocol import Message, Turn

VERSION = 1
"""Of the format. A reader refuses later ones."""

Stop = Literal[
    "submitted",
    "gave_up",
    "turns",
    "time",
    "context",
    "cost",
    "infrastructure",
    "bug",
    "interrupted",
]
"""Why an episode ended, kept apart. submitted: a candidate was promoted. infrastructure: what the policy runs on
failed, and the episode may go on later. bug: something raised. interrupted: it was told to stop; never written, as
after a kill."""
STOPS: tuple[str, ...] = get_args(Stop)


@dataclass(frozen=True)
class Header:
    """What an episode is about and under what it runs.

    task: its JSON text. policy: its name, spec: what it was made from. tools: SHA-256 of the tools' schemas.
    flags: of torch, toolchain and verifier: versions. started: Unix time. budget_s, turns: the limits.
    """

    task: str
    task_digest: str
    target: str
    policy: str
    spec: str
    tools: str
    machine: Mapping[str, Any]
    toolchain: str
    verifier: str
    flags: Mapping[str, Any]
    started: float
    budget_s: float
    turns: int

    def continues(self, other: Header) -> bool:
        """Whether an episode of the one header may go on under the other: nothing differs that a result hangs on."""
        return self._same() == other._same()

    def _same(self) -> tuple[Any, ...]:
        machine = {name: value for name, value in self.machine.items() if name != "load"}
        who = (self.task_digest, self.target, self.policy, self.spec, self.tools)
        return (*who, machine, self.toolchain, self.verifier, dict(self.flags))


@dataclass(frozen=True)
class Said:
    """A message of the environment that answers no call. used: seconds of the budget spent so far, here and below."""

    message: Message
    used: float


@dataclass(frozen=True)
class Acted:
    """A turn of the policy. seconds: what it took to make."""

    turn: Turn
    used: float
    seconds: float


@dataclass(frozen=True)
class Answered:
    """Answers to the next calls of the last turn, and what they brought. seconds: what the tools took.

    Of a judgement that the environment had made itself at the end, one message of the environment.
    """

    messages: tuple[Message, ...]
    gains: Gains
    used: float
    seconds: float


@dataclass(frozen=True)
class Resumed:
    """Another process goes on with the episode, at a Unix time."""

    at: float


@dataclass(frozen=True)
class Ended:
    """How it ended. reward: C7, None where it is not known. promoted: the name of the candidate that won, or ""."""

    stop: Stop
    reason: str
    turns: int
    used: float
    reward: float | None
    promoted: str = ""


Event = Said | Acted | Answered | Resumed | Ended


@dataclass(frozen=True)
class Trajectory:
    """All that a file says. torn: characters of a last line that was being written when its process was killed."""

    header: Header
    events: tuple[Event, ...] = ()
    torn: int = 0

    @property
    def end(self) -> Ended | None:
        """How it ended, if it did and was not taken up again."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Ended) else None

    @property
    def finished(self) -> bool:
        """Whether there is nothing to resume."""
        return self.end is not None and self.end.stop != "infrastructure"

    @property
    def messages(self) -> list[Message]:
        """The conversation."""
        found: list[Message] = []
        for event in self.events:
            match event:
                case Said(message=message):
                    found.append(message)
                case Acted(turn=turn):
                    found.append(turn.to_message())
                case Answered(messages=messages):
                    found += messages
        return found

    @property
    def turns(self) -> list[Turn]:
        """The policy's."""
        return [event.turn for event in self.events if isinstance(event, Acted)]

    @property
    def used(self) -> float:
        """Seconds of the budget spent."""
        return max((e.used for e in self.events if not isinstance(e, Resumed)), default=0.0)

    @property
    def gains(self) -> Gains:
        """All that the tools brought, the later of what has the same name."""
        return merged([event.gains for event in self.events if isinstance(event, Answered)])

    @property
    def fruitless(self) -> int:
        """How often it was taken up again since its policy or a tool did anything.

        An episode that kills its process is let go.
        """
        count = 0
        for event in reversed(self.events):
            if isinstance(event, Said):  # by the environment
                continue
            if not isinstance(event, Resumed):
                break
            count += 1
        return count


def merged(parts: Sequence[Gains]) -> Gains:
    """Several gains in one."""
    whole = Gains()
    for part in parts:
        whole = whole.plus(part)
    return whole


@dataclass(frozen=True)
class Unreadable:
    """Why a file is no trajectory that can be read. line: where, from 1; 0 for the file as a whole."""

    reason: str
    line: int = 0
    remedy: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason
