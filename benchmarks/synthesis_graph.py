"""The graph of a run, recorded call by call, and what of the program it shows.

It knows nothing of Dynamo or fx: a mode below autograd notes each operator of ATen with the tensors that it read and
made, and a mode above it each function of torch that the program called. So it sees programs as they ran, whatever
Python they hold.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

NAMELESS = ("aten.detach", "aten.alias", "aten.lift_fresh")
"""Calls that are no work."""
TENSOR = "tensor"
"""What stands for one among arguments."""
CONTAINERS = "torch.nn.modules.container"
"""Modules of these hold others, which the program has put there."""


@dataclass(eq=False)
class Call:
    """One operator. read: what made each tensor that it read. said: its other arguments. made: shapes and dtypes."""

    name: str
    read: list[Call]
    said: tuple[Any, ...] = ()
    made: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass
class Recorded:
    """calls: in their order. source: which call made a tensor, by its id. named: what a function or a module of a name
    gave, for each time that the program called it. alive: tensors that must not go while their ids count. within: how
    many modules of a library are at work."""

    calls: list[Call] = field(default_factory=list)
    source: dict[int, Call] = field(default_factory=dict)
    named: list[tuple[str, list[Call]]] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)
    within: int = 0

    def of(self, tensor: Tensor) -> Call:
        """What made it; a call without a name where that was before the run."""
        found = self.source.get(id(tensor))
        if found is None:
            found = Call("outside", [], (), _made([tensor]))
            self.source[id(tensor)] = found
            self.alive.append(tensor)
        return found

    def given(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Name what the run is given: inputs or weights."""
        for number, tensor in enumerate(tensors):
            self.source[id(tensor)] = Call(kind, [], (number,), _made([tensor]))
            self.alive.append(tensor)

    def call(self, name: str, result: Any) -> None:
        """Note a call of the program. What a library's module calls is that module's own business: it says nothing of
        whether the program calls a function of that name too."""
        made = tensors_in(result)
        if made and not self.within:
            self.named.append((name, [self.of(tensor) for tensor in made]))


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in lists, dictionaries and objects with fields."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in tensors_in(part)]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def _made(tensors: Sequence[Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((str(t.dtype), tuple(t.shape)) for t in tensors)


class _Operators(TorchDispatchMode):
    def __init__(self, found: Recorded) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read = [self.found.of(tensor) for tensor in tensors_in((args, kwargs))]
        result = func(*args, **kwargs)
        made = tensors_in(result)
        name = str(func)
        if name.startswith(NAMELESS) and read:
            for tensor in made:
                self.found.source[id(tensor)] = read[0]
        else:
            said = (_plain(args), tuple(sorted((k, _plain(v)) for k, v in kwargs.items())))
            call = Call(name, read, said, _made(made))
            self.found.calls.append(call)
            for tensor in made:  # of an operator that writes in place: the tensor itself
                self.found.source[id(tensor)] = call
        self.found.alive += made
        return result


def _plain(value: Any) -> Any:
    """Arguments without their tensors."""
    if isinstance(value, Tensor):
        return TENSOR
    if isinstance(value, list | tuple):
        return tuple(_plain(part) for part in value)
    return value if isinstance(value, int | float | complex | bool | str | None) else str(value)


def _words(value: Any) -> list[Any]:
    """Strings and booleans among arguments."""
    if isinstance(value, tuple):
        return [word for part in value for word in _words(part)]
    return [value] if isinstance(value, str | bool) and value != TENSOR else []


def _choices(said: Any) -> list[Any]:
    """Of an operator's arguments those that choose what is computed, where numbers only say how much."""
    plain, named = said or ((), ())
    return [*_words(plain), *((name, word) for name, value in named for word in _words(value))]


class _Functions(TorchFunctionMode):
    def __init__(self, found: Recorded) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Its own name: that by which torch finds it may be another one of the same function, as spmm of mm.
        name = (getattr(func, "__name__", "") or resolve_name(func) or "").rpartition(".")[2]
        if not name.startswith("__get"):
            self.found.call(name.strip("_"), result)
        return result


def recorded(model: nn.Module, inputs: Sequence[Any]) -> tuple[Recorded, list[Tensor]]:
    """One forward run without gradients, and its results."""
    found = Recorded()
    weights = [*model.parameters(), *model.buffers()]
    found.given("input", tensors_in(inputs))
    found.given("weight", weights)

    def begins(module: nn.Module, _: Any) -> None:
        found.within += _is_of_library(module, model)

    def ends(module: nn.Module, _: Any, result: Any) -> None:
        found.within -= _is_of_library(module, model)
        if module is not model:
            found.call(type(module).__name__, fields(result))

    # Of all modules, since a program may make one while it runs, and also where one raises, which it may catch.
    hooks = [
        register_module_forward_pre_hook(begins),
        register_module_forward_hook(ends, always_call=True),
    ]
    try:
        with torch.no_grad(), _Operators(found), _Functions(found):
            results = tensors_in(fields(model(*inputs)))
    finally:
        for hook in hooks:
            hook.remove()
    return found, results


def _is_of_library(module: nn.Module, model: nn.Module) -> bool:
    return type(module).__module__ not in (type(model).__module__, CONTAINERS)


def fields(value: Any) -> Any:
    """An output object of transformers as a dictionary."""
    return dict(value) if hasattr(value, "keys") else value


def reached(found: Recorded, results: Sequence[Tensor]) -> set[Call]:
    """Everything that the results are made of."""
    waiting = [found.of(result) for result in results]
    seen: set[Call] = set(waiting)
    while waiting:
        for call in waiting.pop().read:
            if call not in seen:
                seen.add(call)
                waiting.append(call)
    return seen


def used_names(found: Recorded, results: Sequence[Tensor]) -> Counter[str]:
    """How often a function or a module of a name made something that the results are made of."""
    live = reached(found, results)
    return Counter(name for name, made in found.named if any(call in live for call in made))


def digest(found: Recorded, results: Sequence[Tensor], numbers: bool) -> str:
    """Of what the results are made of, whatever the order of calls and the names of things.

    numbers: sizes and numbers among the arguments count too. Otherwise two programs that differ in sizes alone have the
    same. To read one input twice is not to read two.
    """
    known: dict[Call, str] = {}
    order: dict[Call, int] = {}
    for root in (found.of(result) for result in results):
        waiting = [root]
        while waiting:
            call = waiting[-1]
            lacking = [part for part in call.read if part not in known]
            if lacking and call not in known:
                waiting += reversed(lacking)
                continue
            waiting.pop()
            if call not in known:
                known[call] = _of_call(call, known, order, numbers)
    parts = "\n".join(known[found.of(result)] for result in results)
    return hashlib.sha256(parts.encode()).hexdigest()[:24]


def _of_call(call: Call, known: dict[Call, str], order: dict[Call, int], numbers: bool) -> str:
    made: Any = call.made if numbers else tuple((kind, len(shape)) for kind, shape in call.made)
    if call.name in ("input", "weight", "outside"):
        said: Any = order.setdefault(call, len(order))
    else:
        said = call.said if numbers else _choices(call.said)
    text = repr((call.name, said, made, [known[part] for part in call.read]))
    return hashlib.sha256(text.encode()).hexdigest()
