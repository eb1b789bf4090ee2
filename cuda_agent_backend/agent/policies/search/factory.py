"""The search policies by name: in the order of proposals, or with a model that chooses among schedules."""

from __future__ import annotations

from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.spec import PolicySpec


def make(spec: PolicySpec) -> SearchPolicy:
    """One with its usual sizes."""
    if spec.name == "bayesian":
        return SearchPolicy(judgements=16, modelled=True, name=spec.name)
    return SearchPolicy()
