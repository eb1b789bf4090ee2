"""The search policy, by its name."""

from __future__ import annotations

from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.search import SearchPolicy


def make(spec: PolicySpec) -> SearchPolicy:
    """One with its usual sizes."""
    return SearchPolicy()
