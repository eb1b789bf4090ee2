"""The conversation of an episode, and what is open in it. It changes by the events of the record and by nothing else.

So an episode that follows its record again is where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cuda_agent_backend.agent.protocol import (
    CUT_OFF,
    LAST_TURNS,
    OUT_OF_TIME,
    Message,
    ToolCall,
    Turn,
)
from cuda_agent_backend.agent.trajectories.events import Acted, Answered, Event, Said
from cuda_agent_backend.agent.workspace.policy_files import size_of


@dataclass
class Conversation:
    """The messages so far, and where the policy's last turn stands.

    turns: how many the policy has taken. last_turn: after how many it has no further one; None before the time is up.
    open: a turn that has not been dealt with; answered: how many of its calls are answered. recorded_bytes: of the
    policy's files in the record.
    """

    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    last_turn: int | None = None
    open: Turn | None = None
    answered: int = 0
    recorded_bytes: int = 0

    def follow(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case Said(message=message):
                self.messages.append(message)
                if message["content"] == OUT_OF_TIME:
                    self.last_turn = self.turns + LAST_TURNS
                if message["content"] == CUT_OFF:
                    self.open = None
            case Acted(turn=turn):
                self.turns += 1
                self.messages.append(turn.to_message())
                self.open, self.answered = turn, 0
            case Answered(messages=messages, gains=gains):
                self.recorded_bytes += size_of(gains.files)
                self.messages += messages
                self.answered += len(messages)
                if self.open is not None and self.answered == len(self.open.calls):
                    self.open = None

    @property
    def unanswered(self) -> Sequence[ToolCall]:
        """The calls of the open turn that have no answer yet."""
        return self.open.calls[self.answered :] if self.open is not None else ()

    def has_called(self, names: Sequence[str]) -> bool:
        """Whether the policy has called one of the tools of these names."""
        return any(
            call["function"]["name"] in names
            for message in self.messages
            for call in message.get("tool_calls", ())
        )
