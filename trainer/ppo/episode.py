"""An episode as the trainer sees it: ids, which of them the policy chose, how likely they were, and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cuda_agent_backend.agent.protocol import Tokens

End = Literal["answered", "turns", "context", "infrastructure"]
"""Why it ended. answered: by a submission or by giving up. turns: its budget of turns, judgements or time, of which it
was told, is spent. context: it fits no window, or its allowance is spent: a limit that is not part of its task.
infrastructure: something failed that says nothing of the policy."""
ENDS: dict[str, End] = {
    "submitted": "answered",
    "gave_up": "answered",
    "turns": "turns",
    "time": "turns",
    "context": "context",
    "cost": "context",
    "infrastructure": "infrastructure",
    "bug": "infrastructure",
    "interrupted": "infrastructure",
}
"""By the agent's reason (see `trajectories.events.Stop`)."""


@dataclass(frozen=True)
class Sample:
    """One sequence of ids that was one conversation to the model.

    ids: all of it, as the engine saw them. spoken: for each id whether the policy sampled it. logprobs: of those that
    it sampled, in their order, under the engine. allowed: for each of these the ids among which it was drawn; empty
    where that is the whole vocabulary.
    """

    ids: tuple[int, ...]
    spoken: tuple[bool, ...]
    logprobs: tuple[float, ...] = ()
    allowed: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        actions = sum(self.spoken)
        if len(self.spoken) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids and {len(self.spoken)} marks of who chose them")
        if self.logprobs and len(self.logprobs) != actions:
            raise ValueError(
                f"{actions} ids were sampled with {len(self.logprobs)} log-probabilities"
            )
        if self.allowed and len(self.allowed) != actions:
            raise ValueError(f"{actions} ids were sampled from {len(self.allowed)} choices")
        if self.spoken and self.spoken[0]:
            raise ValueError("the first id follows nothing, so nothing can have chosen it")

    @property
    def actions(self) -> list[int]:
        """Places of the ids that the policy sampled."""
        return [n for n, chosen in enumerate(self.spoken) if chosen]


@dataclass(frozen=True)
class Episode:
    """What one attempt at a task came to.

    samples: one for each time that the model read the conversation anew, so mostly one. reward: C7, None where it is
    not known. group: of attempts at the same task. notes: what health wants to know, by name.
    """

    samples: tuple[Sample, ...]
    reward: float | None
    end: End
    task: str = ""
    turns: int = 0
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it says anything of the policy."""
        known = self.reward is not None or self.end == "context"
        return self.end != "infrastructure" and known and any(any(s.spoken) for s in self.samples)


def samples_of(turns: Sequence[Tokens]) -> list[tuple[list[int], list[bool], list[float]]]:
    """Ids, marks and log-probabilities of turns as the policy recorded them, without encoding anything anew.

    A turn that does not follow begins another sequence: the model read the conversation as a whole then.
    """
    found: list[tuple[list[int], list[bool], list[float]]] = []
    for tokens in turns:
        if not tokens.follows or not found:
            found.append(([], [], []))
        ids, spoken, logprobs = found[-1]
        ids += [*tokens.prompt, *tokens.ids]
        spoken += [False] * len(tokens.prompt) + [True] * len(tokens.ids)
        logprobs += tokens.logprobs
    return found
