"""A candidate: device source and its launch plan, as one value."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sandbox.plan.plan import Plan, Target

Language = Literal["c++", "cuda", "triton"]
Origin = Literal["sketch", "policy"]


@dataclass(frozen=True)
class Candidate:
    """Source with its plan. `origin` says who wrote the source: our own sketches, or a policy."""

    target: Target
    language: Language
    source: str
    plan: Plan
    origin: Origin
    label: str = ""

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all that determines what runs; origin and label are left out."""
        content = [self.target, self.language, self.source, self.plan.to_json()]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()
