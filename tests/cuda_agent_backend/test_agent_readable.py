"""The task as readable PyTorch: running it is running the task."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from agent_tasks import FUNCTIONS, samples

from cuda_agent_backend.agent.task_source import task_source
from sandbox.accuracy.input_bounds import input_bounds
from sandbox.accuracy.oracle import run_eager
from sandbox.graph.build import build_graph
from sandbox.task.specs import TensorSpec


def loaded(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "task"}
    exec(compile(text, "task.py", "exec"), space)
    return space


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_computes_what_the_task_computes(name: str) -> None:
    made = samples("cpu")[name]
    space = loaded(task_source(made.task))
    wanted = run_eager(build_graph(made.task), made.inputs)
    found = space["task"](*made.inputs)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_inputs_have_the_tasks_layouts_and_keep_the_bounds(name: str) -> None:
    task = samples("cpu")[name].task
    space = loaded(task_source(task))
    made = space["inputs"](3)
    assert [_spec(t) for t in made] == list(task.inputs)
    for tensor, bounds in zip(made, input_bounds(task), strict=True):
        if bounds is not None:
            assert bool((tensor >= bounds[0]).all())
            assert bool((tensor < bounds[1]).all())
    assert len(space["task"](*made)) == len(task.outputs)
    assert all(torch.equal(a, b) for a, b in zip(made, space["inputs"](3), strict=True))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_it_has_a_line_for_every_operator_with_what_comes_out(target: str) -> None:
    for name, made in samples(target).items():
        text = task_source(made.task)
        compile(text, name, "exec")
        lines = re.findall(r"^    t\d+ = \S.*\)  # (.+)$", text, re.MULTILINE)
        assert len(lines) == len(made.task.nodes), name
        assert all(re.match(r"\w+\[", line) for line in lines), name
        assert f"for target {target}" in text


def _spec(tensor: torch.Tensor) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(dtype, tuple(tensor.shape), tuple(tensor.stride()))
