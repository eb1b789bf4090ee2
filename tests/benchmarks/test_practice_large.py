"""The large practice set: every task has its form and its size, and does on small tensors what its text says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kit.task_files import Bounds, faults_of_run, faults_of_source, loaded, name_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from benchmarks.practice_large_table import FOLDER, README, files, table, with_table
from cuda_agent_backend.bench.discovery import Found, discover
from cuda_agent_backend.bench.sizes import held_by
from cuda_agent_backend.graph.canonical import Canonical, canonical
from cuda_agent_backend.tools.model_oracle import oracle, tensors
from sandbox.task.task import Task

TASKS = files()
LEAST = 60
LEAST_BEYOND_32_BITS = 5
LEAST_BYTES, MOST_BYTES_A_TENSOR = 500_000_000, 8_800_000_000
MOST_BYTES_BY_EAGER = 60_000_000_000
TIMES, MORE = 2.5, 2_000_000_000
"""What a phase of a run may hold of a device: so many times inputs and outputs, and so many bytes more."""
NUMBERS = frozenset({torch.float32, torch.int64, torch.int32, torch.int8})
BOUNDS = Bounds(in_all=4 * MOST_BYTES_A_TENSOR, an_input=MOST_BYTES_A_TENSOR, outputs=NUMBERS)
SMALLEST_SIZE = 16
"""Numbers in a graph from here on are sizes, not axes or windows."""
MOST_ERROR = 1e-4


def small(path: Path) -> ModuleType:
    """The task with its sizes for a small machine."""
    module = loaded(path)
    for name, size in module.SMALL.items():
        assert getattr(module, name) > size, f"{name} is not smaller"
        setattr(module, name, size)
    return module


def made(module: ModuleType) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(3)
    return module.Model(*module.get_init_inputs()), module.get_inputs()


def called(model: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return tensors(model(*inputs))


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_large_task_has_the_form_of_one(path: Path) -> None:
    assert list(faults_of_source(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_large_task_is_as_large_as_it_should_be(path: Path) -> None:
    module = loaded(path)
    assert list(faults_of_run(module, BOUNDS)) == []
    held = held_by(module)
    assert held.ends >= LEAST_BYTES
    assert held.largest <= MOST_BYTES_A_TENSOR
    assert held.ends <= held.peak <= min(TIMES * held.ends + MORE, MOST_BYTES_BY_EAGER)
    assert ("beyond_32_bits" in path.stem) == (held.elements > 2**31)


def test_the_bench_takes_every_large_task() -> None:
    found = discover([FOLDER])
    assert isinstance(found, Found)
    assert not found.refused
    assert sorted(task.name for task in found.tasks) == [name_of(path) for path in TASKS]
    assert len(TASKS) >= LEAST
    assert sum("beyond_32_bits" in path.stem for path in TASKS) >= LEAST_BEYOND_32_BITS


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_large_task_makes_its_inputs_on_the_device_that_is_the_default(path: Path) -> None:
    module = loaded(path)
    with torch.device("meta"):
        assert {tensor.device.type for tensor in module.get_inputs()} == {"meta"}
        model = module.Model(*module.get_init_inputs())
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_large_task_runs_at_a_small_size_as_it_does_in_float64(path: Path) -> None:
    model, inputs = made(small(path))
    found, exact = called(model, inputs), oracle(model, inputs)
    assert len(found) == len(exact) > 0
    for one, other in zip(found, exact, strict=True):
        assert one.shape == other.shape and one.numel() > 0
        assert bool(torch.isfinite(other).all()) and bool(other.any())
        if one.is_floating_point():
            error = (one.double() - other).norm() / other.norm()
            assert error < MOST_ERROR
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_output_of_a_large_task_depends_on_some_input_and_every_input_counts(
    path: Path,
) -> None:
    module = small(path)
    model, inputs = made(module)
    before, others = called(model, inputs), module.get_inputs()
    changed = [
        [not torch.equal(*pair) for pair in zip(before, called(model, mixed), strict=True)]
        for mixed in ([*inputs[:n], others[n], *inputs[n + 1 :]] for n in range(len(inputs)))
    ]
    assert all(any(row) for row in changed), "an input does not count"
    assert all(any(column) for column in zip(*changed, strict=True)), "an output is constant"


def graph_of(module: ModuleType) -> Task:
    """The task's canonical graph, weights among its inputs."""
    with FakeTensorMode(), torch.no_grad():
        model, inputs = made(module)
        weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}

        def call(weights: dict[str, Tensor], *inputs: Tensor) -> list[Any]:
            return tree_leaves(torch.func.functional_call(model, weights, inputs))

        traced = make_fx(call)(weights, *inputs)
    nodes = [node for node in traced.graph.nodes if node.op == "call_function"]
    (end,) = (node for node in traced.graph.nodes if node.op == "output")
    found = canonical(nodes, list(end.args[0]), "cpu")
    assert isinstance(found, Canonical), found
    return found.task


def without_sizes(task: Task) -> str:
    """What is computed, whatever its sizes."""
    text = repr((task.nodes, task.outputs))
    return re.sub(r"\d+", lambda n: "n" if int(n[0]) >= SMALLEST_SIZE else n[0], text)


def test_no_two_large_tasks_have_the_same_graph_but_for_sizes() -> None:
    owners: dict[str, list[str]] = {}
    for path in TASKS:
        owners.setdefault(without_sizes(graph_of(loaded(path))), []).append(name_of(path))
    assert [names for names in owners.values() if len(names) > 1] == []


@pytest.mark.parametrize("size", [3_000, 70_000])
def test_graphs_that_differ_in_sizes_only_are_the_same(size: int) -> None:
    module = loaded(FOLDER / "elementwise" / "silu_gate.py")
    before = graph_of(module)
    module.ROWS = size
    after = graph_of(module)
    assert before != after and without_sizes(before) == without_sizes(after)


def test_the_readme_has_what_the_tasks_hold_and_how_many_there_are() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_table(text, table(TASKS)) == text
    told = {folder: int(n) for folder, n in re.findall(r"^\| (\w+) \| .+ \| (\d+) \|$", text, re.M)}
    assert told == Counter(path.parent.name for path in TASKS)
