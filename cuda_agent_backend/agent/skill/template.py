"""A launch plan for a task to begin with: its buffers as they must be, and one step to fill in."""

from __future__ import annotations

import json
from typing import Any

from sandbox.plan.plan import VERSION
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import Task

THREADS = 256


def plan_template(task: Task) -> str:
    """The plan as JSON text, one buffer to a line. It parses; the launch of a cuda plan covers the first output with
    one thread for each element, which is seldom what is wanted."""
    buffers = [_buffer(f"in{i}", "input", s) for i, s in enumerate(task.inputs)]
    buffers += [_buffer(f"out{i}", "output", s) for i, s in enumerate(task.output_specs)]
    step: dict[str, Any] = {"kind": "launch", "kernel": "kernel"}
    sizes = {}
    if task.target == "cuda":
        sizes = {"n": max(1, task.output_specs[0].numel)}
        step |= {
            "grid": [f"ceildiv(n, {THREADS})", 1, 1],
            "block": [THREADS, 1, 1],
            "shared": 0,
            "args": [b["name"] for b in buffers],
        }
    parts = [
        f'"version": {VERSION}',
        f'"target": {json.dumps(task.target)}',
        f'"sizes": {json.dumps(sizes)}',
        f'"buffers": [\n{_lines(buffers)}\n]',
        f'"steps": [\n{_lines([step])}\n]',
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _buffer(name: str, kind: str, spec: TensorSpec) -> dict[str, Any]:
    made = {"name": name, "kind": kind, "dtype": spec.dtype, "shape": list(spec.shape)}
    plain = spec.stride == contiguous_stride(spec.shape)
    return made if plain else {**made, "stride": list(spec.stride)}


def _lines(items: list[dict[str, Any]]) -> str:
    return ",\n".join(" " + json.dumps(item) for item in items)
