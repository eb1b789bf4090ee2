"""The filters of rejection fine-tuning: which episodes a policy may imitate. Each rule has a name and one reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cuda_agent_backend.agent.protocol import CUT_OFF, Message
from trainer.rollout.episodes import Played

MOST_REPEATS = 2
"""Times that the same call with the same arguments may be in an episode: a noisy judgement may be asked for again."""
SCHEMA_MARKS = ("arguments of ", "has no argument ", "no tool ", " needs ", "no candidate ")
"""What the tools' errors say where a call breaks its schema (see `agent.protocol.parse_arguments`)."""


def infrastructure(one: Played) -> str:
    """Nothing failed that says nothing of the policy."""
    return "" if one.episode.counts else f"it ended by {one.episode.end}"


def not_positive(one: Played) -> str:
    """The reward is above zero."""
    reward = one.episode.reward
    return "" if reward is not None and reward > 0 else f"its reward is {reward}"


def redundant_loop(one: Played) -> str:
    """No call is made again and again with the same arguments, and no stretch of turns is repeated at once."""
    calls = [json.dumps([c["name"], c["arguments"]]) for c in _calls(one.messages)]
    often = [call for call, count in Counter(calls).items() if count > MOST_REPEATS]
    if often:
        return f"a call is made more than {MOST_REPEATS} times: {often[0][:100]}"
    turns = [
        json.dumps([c["function"] for c in m.get("tool_calls", ())])
        for m in one.messages
        if m["role"] == "assistant"
    ]
    for length in range(1, len(turns) // 2 + 1):
        for start in range(len(turns) - 2 * length + 1):
            if turns[start : start + length] == turns[start + length : start + 2 * length]:
                return f"turns {start + 1} to {start + length} are done again at once"
    return ""


def broken_schema(one: Played) -> str:
    """No tool answered that a call does not fit it."""
    for message in one.messages:
        error = _answer(message).get("error") if message["role"] == "tool" else None
        if isinstance(error, str) and any(mark in error for mark in SCHEMA_MARKS):
            return error[:200]
    return ""


def cut_off(one: Played) -> str:
    """No message was cut off."""
    cut = any(m["role"] == "user" and m.get("content") == CUT_OFF for m in one.messages)
    return "a message was cut off" if cut else ""


RULES: dict[str, Callable[[Played], str]] = {
    "infrastructure": infrastructure,
    "not positive": not_positive,
    "redundant loop": redundant_loop,
    "broken schema": broken_schema,
    "cut off": cut_off,
}
"""By name, in the order in which they are asked; each gives why an episode is dropped, or ""."""


def why_dropped(one: Played) -> tuple[str, str] | None:
    """The first rule that drops an episode, and its reason; None for one that stays."""
    for name, rule in RULES.items():
        if reason := rule(one):
            return name, reason
    return None


def filtered(every: Sequence[Played]) -> tuple[list[Played], dict[str, int]]:
    """Episodes that stay, and how many each rule dropped."""
    kept, dropped = [], Counter[str]()
    for one in every:
        found = why_dropped(one)
        if found is None:
            kept.append(one)
        else:
            dropped[found[0]] += 1
    return kept, dict(dropped)


def _calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [c["function"] for m in messages for c in m.get("tool_calls", ())]


def _answer(message: Message) -> dict[str, Any]:
    try:
        value = json.loads(message["content"])
    except (ValueError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}
