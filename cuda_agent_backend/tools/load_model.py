"""From ``FILE:FUNCTION`` on the command line to a model and its inputs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class LoadedModel:
    """What FUNCTION returned: a module and the arguments to call it with."""

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]

    def to(self, device: str) -> LoadedModel:
        """The same with the module's and the inputs' tensors on a device."""
        moved = tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in self.inputs)
        return LoadedModel(self.name, self.model.to(device), moved)


@dataclass(frozen=True)
class BadTarget:
    """Why ``FILE:FUNCTION`` gives no model, in one or a few lines."""

    reason: str


def load_model(target: str) -> LoadedModel | BadTarget:
    """Import FILE, call FUNCTION without arguments, and check what it returns.

    The file is run with its folder on ``sys.path``, as Python itself would run it. Exceptions of the user's code become
    a `BadTarget` that names the line they came from.
    """
    file, colon, function = target.rpartition(":")
    if not colon or not file or not function.isidentifier():
        return BadTarget(f"{target!r} is not FILE:FUNCTION, such as examples/models.py:vit")
    path = Path(file)
    if not path.is_file():
        return BadTarget(f"no file {file}")
    module = import_file(path)
    if isinstance(module, BadTarget):
        return module
    make = getattr(module, function, None)
    if not callable(make):
        return BadTarget(f"{file} has no function {function!r}{_functions(module)}")
    return _call(target, make)


def import_file(path: Path) -> ModuleType | BadTarget:
    """Run a Python file as a module, with its folder on ``sys.path``; what it raises becomes a `BadTarget`."""
    name = f"cuda_agent_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return BadTarget(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        return BadTarget(f"{path} cannot be imported: {_said(error)}")
    return module


def _call(target: str, make: Callable[[], Any]) -> LoadedModel | BadTarget:
    try:
        made = make()
    except Exception as error:
        return BadTarget(f"{target} raised {_said(error)}")
    if not isinstance(made, tuple) or len(made) != 2:
        return BadTarget(f"{target} must return (model, inputs), not {type(made).__name__}")
    model, inputs = made
    if not isinstance(model, nn.Module):
        return BadTarget(f"{target}: the model is {type(model).__name__}, not torch.nn.Module")
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list):
        return BadTarget(f"{target}: the inputs are {type(inputs).__name__}, not a tuple")
    return LoadedModel(target.rpartition(":")[2], model, tuple(inputs))


def _functions(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not isinstance(value, type)
        and getattr(value, "__module__", "") == module.__name__
    ]
    return f"; it has {', '.join(own)}" if own else ""


def _said(error: Exception) -> str:
    """The exception and the innermost line of code that it came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" (at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{place}"
