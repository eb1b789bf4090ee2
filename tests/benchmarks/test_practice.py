"""The practice set: every task has its form, runs on fake tensors, fits in memory, and is there once."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRACTICE = Path(__file__).parents[2] / "benchmarks" / "practice"
TASKS = sorted(PRACTICE.glob("*/*.py"))
LEAST = {"single": 70, "fused": 40, "networks": 20}
LEAST_IN_ALL = 130
MOST_BYTES = 4_000_000_000
"""Inputs, weights and outputs together."""
MOST_BYTES_AN_INPUT = 300_000_000
FUNCTIONS = {"get_inputs", "get_init_inputs"}
IMPORTS = {"__future__", "itertools", "math", "torch"}
FORBIDDEN = re.compile(r"seed|manual_seed|open|exec|load|save|hub|cuda|getattr|.*[dD]ropout.*")
INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}


class Draws(TorchDispatchMode):
    """Names the operators that draw random numbers; a dropout of nothing draws none."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            schema = [argument.name for argument in func._schema.arguments]
            given = dict(zip(schema, args, strict=False)) | kwargs
            if "dropout_p" not in schema or given.get("dropout_p", 0.0) != 0.0:
                self.names.append(str(func))
        return func(*args, **kwargs)


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"practice_{path.parent.name}_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults_of_source(text: str) -> Iterator[str]:
    """What a task's text has that it must not have, or lacks."""
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree) or ""
    if not docstring.endswith(".") or "\n" in docstring:
        yield "no docstring of one line"
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if missing := {"Model", *FUNCTIONS} - names:
        yield f"no {missing}"
    kinds = [type(node) for node in tree.body[1:]]
    expected = (ast.ImportFrom, ast.Import, ast.Assign, ast.ClassDef, ast.FunctionDef)
    if other := set(kinds) - set(expected):
        yield f"statements of other kinds: {other}"
    ranks = [min(expected.index(kind), 3) for kind in kinds if kind in expected]
    if max(ranks, default=0) and [r for r in ranks if r >= 2] != sorted(r for r in ranks if r >= 2):
        yield "constants not at the top"
    for node in ast.walk(tree):
        yield from _faults_of_node(node, top=node in tree.body)


def _faults_of_node(node: ast.AST, *, top: bool) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        sources = (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [name.name for name in node.names]
        )
        for source in sources:
            if source.partition(".")[0] not in IMPORTS:
                yield f"imports {source}"
    elif isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if FORBIDDEN.fullmatch(name):
            yield f"uses {name}"
    elif isinstance(node, ast.Assign) and top:
        try:
            ast.literal_eval(node.value)
        except ValueError:
            yield f"a constant that is computed in line {node.lineno}"
        if not all(isinstance(t, ast.Name) and t.id.isupper() for t in node.targets):
            yield f"a constant without capitals in line {node.lineno}"


def faults_of_run(module: ModuleType) -> Iterator[str]:
    """What goes wrong when the task runs on fake tensors, which hold no memory."""
    init = module.get_init_inputs()
    if not isinstance(init, list) or not all(isinstance(v, int | float | str) for v in init):
        yield "arguments of the constructor that are no plain values"
    with FakeTensorMode(), torch.no_grad():
        model = module.Model(*init)
        with Draws() as drawn:
            inputs = module.get_inputs()
        yield from _faults_of_inputs(inputs, drawn)
        state = [*model.parameters(), *model.buffers()]
        versions = [tensor._version for tensor in (*inputs, *state)]
        with Draws() as draws:
            output = model(*inputs)
        if draws.names:
            yield f"forward draws random numbers: {draws.names}"
        if versions != [tensor._version for tensor in (*inputs, *state)]:
            yield "forward changes its inputs or its state"
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            yield "batch norm in training mode"
    outputs = [output] if isinstance(output, Tensor) else list(output)
    yield from _faults_of_outputs(outputs)
    if (held := sum(tensor.nbytes for tensor in (*inputs, *state, *outputs))) > MOST_BYTES:
        yield f"{held} bytes"


def _faults_of_inputs(inputs: object, drawn: Draws) -> Iterator[str]:
    if not isinstance(inputs, list) or not inputs:
        yield "inputs are no list"
        return
    if len(drawn.names) < len(inputs):
        yield "inputs that are not drawn at random"
    for tensor in inputs:
        if tensor.dtype != torch.float32 and tensor.dtype not in INTEGERS:
            yield f"an input of {tensor.dtype}"
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.requires_grad:
            yield "an input that is not plain"
        if tensor.nbytes > MOST_BYTES_AN_INPUT:
            yield f"an input of {tensor.nbytes} bytes"


def _faults_of_outputs(outputs: list[Any]) -> Iterator[str]:
    if not outputs or not all(isinstance(output, Tensor) for output in tree_leaves(outputs)):
        yield "no tensors come out"
        return
    for tensor in outputs:
        if not all(type(size) is int and size > 0 for size in tensor.shape):
            yield f"an output of shape {tensor.shape}"
        if tensor.dtype not in (torch.float32, torch.int64):
            yield f"an output of {tensor.dtype}"


def model_of(text: str) -> str:
    """The class ``Model`` and the helpers before it, without comments, layout and docstrings."""
    tree = ast.parse(text)
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in FUNCTIONS
    ]
    for node in kept:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return "\n".join(ast.dump(node) for node in kept)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_task_has_the_form_of_one(path: Path) -> None:
    assert list(faults_of_source(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", TASKS, ids=name_of)
def test_every_task_runs_on_fake_tensors_within_its_bounds(path: Path) -> None:
    assert list(faults_of_run(loaded(path))) == []


def test_there_are_enough_tasks_of_each_kind() -> None:
    counts = Counter(path.parent.name for path in TASKS)
    assert counts.keys() == LEAST.keys()
    assert all(counts[name] >= least for name, least in LEAST.items()), counts
    assert len(TASKS) >= LEAST_IN_ALL


def test_no_two_tasks_have_the_same_model_or_the_same_docstring() -> None:
    for part in (model_of, lambda text: ast.get_docstring(ast.parse(text))):
        owners: dict[str | None, list[str]] = {}
        for path in TASKS:
            owners.setdefault(part(path.read_text(encoding="utf-8")), []).append(name_of(path))
        assert [names for names in owners.values() if len(names) > 1] == []


def test_the_readme_counts_every_task() -> None:
    text = (PRACTICE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| (\d+) \|$", text, re.MULTILINE)
    told: Counter[str] = Counter()
    for folder, number in rows:
        told[folder] += int(number)
    assert told == Counter(path.parent.name for path in TASKS)


GOOD = '''"""Doubles rows."""

import torch
from torch import Tensor, nn

ROWS = 4


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, 3)]


def get_init_inputs() -> list[object]:
    return []
'''

SPOILED = {
    "docstring of one line": ('"""Doubles rows."""', ""),
    "no {'get_init_inputs'}": ("def get_init_inputs", "def get_inits"),
    "constants not at the top": ("    return []\n", "    return []\n\n\nLATE = 3\n"),
    "without capitals": ("ROWS = 4", "ROWS = 4\nrows = 4"),
    "computed": ("ROWS = 4", "ROWS = min(4, 5)"),
    "imports os": ("import torch\n", "import os\nimport torch\n"),
    "uses manual_seed": ("    return [torch", "    torch.manual_seed(1)\n    return [torch"),
    "draws random numbers": ("2 * x", "x + torch.randn_like(x)"),
    "uses dropout": ("2 * x", "nn.functional.dropout(x)"),
    "changes its inputs": ("2 * x", "x.mul_(2)"),
    "not drawn": ("torch.randn", "torch.ones"),
    "an input of torch.float64": ("(ROWS, 3)", "(ROWS, 3, dtype=torch.float64)"),
    "not plain": ("(ROWS, 3)", "(ROWS, 3).T"),
    "an input of 1200000000 bytes": ("ROWS = 4", "ROWS = 100_000_000"),
    "4800000012 bytes": ("2 * x", "x[:1].repeat(400_000_000 - 3, 1)"),
    "an output of shape": ("2 * x", "x[:0]"),
    "an output of torch.bool": ("2 * x", "x > 0"),
    "no tensors": ("2 * x", "3, 4"),
    "no plain values": ("return []", "return [None]"),
    "training mode": (
        "    def forward",
        "    def __init__(self) -> None:\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(3)\n\n    def forward",
    ),
}


def faults(text: str, folder: Path) -> list[str]:
    path = folder / "task.py"
    path.write_text(text)
    found = list(faults_of_source(text))
    try:
        found += faults_of_run(loaded(path))
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


def test_a_good_task_has_no_faults(tmp_path: Path) -> None:
    assert faults(GOOD, tmp_path) == []


@pytest.mark.parametrize("fault", SPOILED)
def test_a_spoiled_task_is_found_out(fault: str, tmp_path: Path) -> None:
    before, after = SPOILED[fault]
    assert before in GOOD
    assert any(fault in found for found in faults(GOOD.replace(before, after), tmp_path))


@pytest.mark.parametrize("value", ["x.nonzero()", "x[: int(x.sum())]", "x.sum().item() * x"])
def test_sizes_and_values_that_depend_on_data_do_not_pass(value: str, tmp_path: Path) -> None:
    found = faults(GOOD.replace("2 * x", value), tmp_path)
    assert any("DataDependent" in fault or "DynamicOutputShape" in fault for fault in found), found


def test_models_that_differ_in_words_only_are_the_same() -> None:
    told = GOOD.replace("(nn.Module):\n", '(nn.Module):\n    """Twice."""\n\n')
    assert told != GOOD and model_of(told) == model_of(GOOD)
    assert model_of(GOOD.replace("2 * x", "3 * x")) != model_of(GOOD)
