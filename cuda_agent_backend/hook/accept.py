"""Step 4 of the pass: with which kernels the whole graph is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent_backend.hook.compilation import Compilation
from cuda_agent_backend.hook.lookup import Candidates
from cuda_agent_backend.hook.whole_graph import Subject, known_decision, measure
from cuda_agent_backend.partition.splice import Replacement, choose


@dataclass(frozen=True)
class Accepted:
    """The kernels of a graph that are used, and by key digest why others are not. decision: what was measured."""

    candidates: Candidates
    dropped: Mapping[str, str] = field(default_factory=dict)
    decision: Mapping[str, Any] = field(default_factory=dict)

    @property
    def replacements(self) -> list[Replacement]:
        """What to splice: at most one kernel for each region and its rest."""
        hits = {hit.key.digest for hit in self.candidates.hits}
        places = [whole.replacements for whole in self.candidates.wholes]
        return choose(places, hits - self.dropped.keys())


def accept(candidates: Candidates, subject: Subject, compilation: Compilation) -> Accepted:
    """Drop the kernels that the whole graph is not better with, and those for which there is no time to measure it.

    Without kernels, a graph that may be replayed is measured as well.
    """
    keys = candidates.keys
    asked = bool(keys) or subject.static_inputs is not None
    if not asked or compilation.options.acceptance == "trust":
        return Accepted(candidates)
    decision = known_decision(compilation, subject.name, keys)
    if not decision:
        decision = measure(compilation, subject, keys, compilation.left_s)
    if isinstance(decision, str):
        return Accepted(candidates, {key.digest: decision for key in keys})
    use = set(decision.get("use", ()))
    reason = str(decision.get("reason") or "the whole graph is not faster with it")
    dropped = {key.digest: reason for key in keys if key.digest not in use}
    return Accepted(candidates, dropped, decision)
