"""One episode: a policy works on a task until it submits a winner, gives up, or the budget ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent_backend.agent.environment import first_messages
from cuda_agent_backend.agent.protocol import Message, Policy, Stopped
from cuda_agent_backend.agent.tools import Toolbox
from sandbox.candidate import Candidate
from sandbox.verdict import Verdict

Progress = Callable[[str], None]
OUT_OF_TIME = "The time is up. Submit what is best; nothing else is done any more."
LAST_TURNS = 2
"""Turns in which a policy may submit what it has after the time is up."""


@dataclass(frozen=True)
class Budget:
    """Limits of one episode: seconds (see the clock of `run_episode`) and policy turns."""

    seconds: float
    turns: int = 200


@dataclass(frozen=True)
class EpisodeResult:
    """What an episode came to. ``best`` is a candidate that won, with its verdict; ``reason`` one line."""

    best: tuple[Candidate, Verdict] | None
    reason: str
    trajectory: list[Message] = field(default_factory=list)
    turns: int = 0
    seconds: float = 0.0


def run_episode(
    policy: Policy,
    tools: Toolbox,
    budget: Budget,
    progress: Progress = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> EpisodeResult:
    """Let ``policy`` work with ``tools`` within ``budget``, of which only what ``clock`` counts is spent.

    What it has found by then may still be judged: a judgement is not cut short. A policy's exception is its own bug and
    ends the episode with what was found so far.
    """
    started = clock()
    messages = first_messages(tools)
    turns = 0
    reason = ""
    last: int | None = None
    while tools.finished is None:
        if turns >= budget.turns:
            reason = f"{budget.turns} turns are used up"
            break
        if last is None and clock() - started > budget.seconds:
            reason = f"{budget.seconds:.3g} s are used up"
            if not tools.profiles:
                break
            last = turns + LAST_TURNS
            messages.append({"role": "user", "content": OUT_OF_TIME})
        if turns == last:
            break
        turn = policy.act(messages, tools.schemas)
        if isinstance(turn, Stopped):
            reason = turn.reason
            break
        turns += 1
        messages.append(turn.to_message())
        if last is not None and any(call.name != "submit" for call in turn.calls):
            break
        if turn.truncated:
            messages.append(
                {
                    "role": "user",
                    "content": "Your message was cut off; its tool calls were not run.",
                }
            )
        elif turn.calls:
            messages += tools.run(turn.calls)
            progress(_last_line(messages))
        else:
            reason = turn.content or "the policy stopped without a tool call"
            break
    best = tools.best()
    return EpisodeResult(best, tools.finished or reason, messages, turns, clock() - started)


def _last_line(messages: list[Message]) -> str:
    content: dict[str, Any] = json.loads(messages[-1]["content"])
    return str(
        content.get("reason")
        or content.get("error")
        or content.get("sketch")
        or messages[-1]["name"]
    )


def save_trajectory(path: Path, result: EpisodeResult) -> None:
    """Write the messages as JSON lines, with a closing line that says how the episode ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = {"role": "end", "reason": result.reason, "turns": result.turns, "seconds": round(result.seconds, 3),
           "promoted": result.best is not None}  # fmt: skip
    text = "".join(json.dumps(m, sort_keys=True) + "\n" for m in (*result.trajectory, end))
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
