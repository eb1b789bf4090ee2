"""Bringing a policy that has a state to where it was, by the conversation alone (see `agent.resume`)."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent_backend.agent.protocol import Message, Policy, Schema, Stopped, Turn


def decide_again(policy: Policy, messages: Sequence[Message], schemas: Sequence[Schema]) -> str:
    """Let a policy make all its turns again from what it saw then; "" or where it goes another way."""
    turns = 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        turns += 1
        turn: Turn | Stopped = policy.act(messages[:number], schemas)
        if isinstance(turn, Stopped):
            return f"in turn {turns} it stops: {turn.reason}"
        if turn.to_message() != message:
            return f"turn {turns} is another"
    return ""
