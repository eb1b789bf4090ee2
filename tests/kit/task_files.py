"""What a task file of a benchmark must be: its form, and what it does on tensors without memory."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FUNCTIONS = {"get_inputs", "get_init_inputs"}
IMPORTS = {"__future__", "itertools", "math", "torch"}
FORBIDDEN = re.compile(r"seed|manual_seed|open|exec|load|save|hub|cuda|getattr|.*[dD]ropout.*")
INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}


@dataclass(frozen=True)
class Bounds:
    """Most bytes of inputs, weights and outputs together, and of one input; and what outputs may be."""

    in_all: int
    an_input: int
    outputs: Set[torch.dtype] = frozenset({torch.float32, torch.int64})


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


def faults_of_run(module: ModuleType, bounds: Bounds) -> Iterator[str]:
    """What goes wrong when the task runs on fake tensors, which hold no memory."""
    init = module.get_init_inputs()
    if not isinstance(init, list) or not all(isinstance(v, int | float | str) for v in init):
        yield "arguments of the constructor that are no plain values"
    with FakeTensorMode(), torch.no_grad():
        model = module.Model(*init)
        with Draws() as drawn:
            inputs = module.get_inputs()
        yield from _faults_of_inputs(inputs, drawn, bounds)
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
    yield from _faults_of_outputs(outputs, bounds)
    if (held := sum(tensor.nbytes for tensor in (*inputs, *state, *outputs))) > bounds.in_all:
        yield f"{held} bytes"


def _faults_of_inputs(inputs: object, drawn: Draws, bounds: Bounds) -> Iterator[str]:
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
        if tensor.nbytes > bounds.an_input:
            yield f"an input of {tensor.nbytes} bytes"


def _faults_of_outputs(outputs: list[Any], bounds: Bounds) -> Iterator[str]:
    if not outputs or not all(isinstance(output, Tensor) for output in tree_leaves(outputs)):
        yield "no tensors come out"
        return
    for tensor in outputs:
        if not all(type(size) is int and size > 0 for size in tensor.shape):
            yield f"an output of shape {tensor.shape}"
        if tensor.dtype not in bounds.outputs:
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
