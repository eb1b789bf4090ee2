"""The declarative launch plan: which buffers a candidate has and which kernels run on them, as JSON.

A plan is the whole host side of a candidate. It is data: the launcher carries it out, so no host code comes with it.
Every expression is evaluated and checked when a plan is made, so a Plan that exists is one that can be launched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sandbox.operator_library import MAX_INPUTS, MAX_OUTPUTS
from sandbox.plan.check import check_plan
from sandbox.plan.codec import buffer_json, read_buffer, read_step, step_json
from sandbox.plan.library_calls import Convolution, Gemm, LibraryCall, View
from sandbox.plan.steps import (
    Argument,
    Buffer,
    Kind,
    Launch,
    PlanError,
    ResolvedLaunch,
    Scalar,
    Step,
    Target,
    TensorMap,
    Triple,
    TritonLaunch,
    as_list,
    check_keys,
    require,
    resolve,
)
from sandbox.task.specs import TensorSpec

__all__ = [
    "MAX_INPUTS",
    "MAX_OUTPUTS",
    "Argument",
    "Buffer",
    "Convolution",
    "Gemm",
    "Kind",
    "Launch",
    "LibraryCall",
    "Plan",
    "PlanError",
    "ResolvedLaunch",
    "Scalar",
    "Step",
    "Target",
    "TensorMap",
    "Triple",
    "TritonLaunch",
    "View",
    "resolve",
]

VERSION = 1
MAX_TEXT = 1 << 20


@dataclass(frozen=True)
class Plan:
    """Buffers (inputs, outputs, temporaries, prepacked, in this order) and steps.

    Raises PlanError when inconsistent.
    """

    target: Target
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_plan(self)

    @cached_property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the inputs, in order."""
        return tuple(b.spec for b in self.buffers if b.kind == "input")

    @cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the outputs, in order."""
        return tuple(b.spec for b in self.buffers if b.kind == "output")

    @cached_property
    def temporary_specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the temporaries, in order."""
        return tuple(b.spec for b in self.buffers if b.kind == "temporary")

    def launches(self) -> tuple[ResolvedLaunch, ...]:
        """The kernel launches with evaluated dimensions and arguments, in order; what is no `Launch` is left out."""
        return tuple(resolve(s, self.sizes) for s in self.steps if isinstance(s, Launch))

    @cached_property
    def calls(self) -> tuple[LibraryCall, ...]:
        """The library calls, in order."""
        return tuple(step for step in self.steps if isinstance(step, LibraryCall))

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        document = {
            "version": VERSION,
            "target": self.target,
            "buffers": [buffer_json(b) for b in self.buffers],
            "sizes": dict(self.sizes),
            "steps": [step_json(s) for s in self.steps],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan. Raises PlanError on anything malformed."""
        if len(text) > MAX_TEXT:
            raise PlanError(f"plan of {len(text)} characters; at most {MAX_TEXT}")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"not JSON: {error}") from None
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Plan:
        """Read a plan from parsed JSON. Raises PlanError on anything malformed."""
        check_keys(document, {"version", "target", "buffers", "steps"}, {"sizes"}, "plan")
        require(
            document["version"] == VERSION, f"version {document['version']!r}; known: {VERSION}"
        )
        sizes = document.get("sizes", {})
        require(isinstance(sizes, dict), "sizes: not an object")
        return cls(
            target=document["target"],
            buffers=tuple(read_buffer(b) for b in as_list(document["buffers"], "buffers")),
            steps=tuple(read_step(s, i) for i, s in enumerate(as_list(document["steps"], "steps"))),
            sizes=sizes,
        )
