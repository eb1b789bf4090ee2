"""What a budget of judgements counts: calls for which a device checks or times a candidate, or that come to nothing."""

from __future__ import annotations

from collections.abc import Iterable

from cuda_agent_backend.agent.protocol import Message, ToolCall
from cuda_agent_backend.json_values import object_in

JUDGING = ("verify", "profile")
"""Tools of which each call is a judgement."""


def is_judgement(call: ToolCall, answer: str, profiled: Iterable[str]) -> bool:
    """Whether a call counts: a profile, a verification, a submission of what was never profiled, or a schedule that
    gives no candidate.

    answer: the content of the tool's message. profiled: candidates that were timed before it.
    """
    if call.name == "sketch":
        return '"ok": true' not in answer
    if call.name == "submit":
        known = any(name in call.arguments for name in profiled)
        return '"candidate"' in call.arguments and not known
    return call.name in JUDGING


class Tally:
    """A conversation as far as its judgements go. profiled: candidates that were timed."""

    def __init__(self) -> None:
        self.profiled: set[str] = set()
        self._asked: dict[str, ToolCall] = {}

    def follow(self, message: Message) -> bool:
        """Take in the next message, of whomever; whether it answers a judgement."""
        if message["role"] == "assistant":
            calls = [(c["id"], c["function"]) for c in message.get("tool_calls", ())]
            self._asked = {id: ToolCall(id, f["name"], f["arguments"]) for id, f in calls}
        call = self._asked.get(str(message.get("tool_call_id")))
        if message["role"] != "tool" or call is None:
            return False
        counts = is_judgement(call, str(message["content"]), self.profiled)
        if call.name == "profile" and isinstance(
            object_in(message["content"]).get("speedup"), dict
        ):
            self.profiled.add(str(object_in(call.arguments).get("candidate")))
        return counts
