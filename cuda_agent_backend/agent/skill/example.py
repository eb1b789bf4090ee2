"""The worked example: a small task, with a kernel and a plan for each target."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from cuda_agent_backend.agent.task_source import task_source
from sandbox.task.specs import TensorSpec, contiguous_stride
from sandbox.task.task import InputRef, Node, NodeRef, Task

ROWS, COLUMNS, THREADS = 4096, 2048, 256
TRITON_SOURCE = "kernel.triton"
"""In a workspace kernel.py; here it is no module of the package."""
SOURCES = {"cuda": "kernel.cu", "cpu": "kernel.cpp"}


def example_task(target: str, rows: int = ROWS) -> Task:
    """x w / (1 + mean |x|) by rows, x float32 [rows, 2048], w float32 [2048]."""
    x, w = _spec(rows, COLUMNS), _spec(COLUMNS)
    nodes = (
        Node("aten.abs.default", {"self": InputRef(0)}),
        Node("aten.mean.dim", {"self": NodeRef(0), "dim": (-1,), "keepdim": True}),
        Node("aten.add.Tensor", {"self": NodeRef(1), "other": 1}),
        Node("aten.mul.Tensor", {"self": InputRef(0), "other": InputRef(1)}),
        Node("aten.div.Tensor", {"self": NodeRef(3), "other": NodeRef(2)}),
    )
    return Task(target, (x, w), nodes, (NodeRef(4),), (x,))


def example_plan(target: str, rows: int = ROWS) -> str:
    """The plan as JSON text, as a person would write it."""
    from cuda_agent_backend.agent.skill.template import plan_template

    plan = plan_template(example_task(target, rows))
    one = '"grid": ["ceildiv(n, 256)", 1, 1]'
    return plan.replace(one, '"grid": ["rows", 1, 1]').replace(
        f'"sizes": {{"n": {rows * COLUMNS}}}', f'"sizes": {{"rows": {rows}}}'
    )


@cache
def example_text(target: str) -> str:
    """The task as PyTorch."""
    return task_source(example_task(target))


def triton_plan(rows: int = ROWS) -> str:
    """The plan of the example in Triton."""
    plan = example_plan("cuda", rows)
    at = plan.index(' {"kind": "launch"')
    step = {
        "kind": "triton",
        "kernel": "kernel",
        "grid": ["rows", 1, 1],
        "args": ["in0", "in1", "out0"],
        "constexprs": {"COLUMNS": COLUMNS},
        "num_warps": 8,
    }
    return f"{plan[:at]} {json.dumps(step)}\n]\n}}\n"


def example_source(target: str) -> str:
    """The kernel's source."""
    return source_of(SOURCES[target])


def source_of(name: str) -> str:
    """A file of the folder of examples."""
    folder = files("cuda_agent_backend.agent.skill") / "examples"
    return (folder / name).read_text(encoding="utf-8")


def example_files(target: str) -> dict[str, str]:
    """The example as files of a workspace, by name."""
    found = {
        "task.py": example_text(target),
        SOURCES[target]: example_source(target),
        "plan.json": example_plan(target),
    }
    triton = {"kernel.py": source_of(TRITON_SOURCE), "plan.triton.json": triton_plan()}
    return found | (triton if target == "cuda" else {})


def _spec(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape, contiguous_stride(shape))
