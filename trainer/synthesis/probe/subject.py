"""A task, built on its device: how to draw inputs for it and how to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent_backend.bench.built_task import OTHER
from cuda_agent_backend.tools.load_model import BadTarget, import_file
from cuda_agent_backend.tools.model_oracle import tensors
from trainer.synthesis.probe.request import ProbeRequest

SEED = 2602
COTANGENT_SEED = 17


class NoTask(Exception):
    """The code is no task."""


@dataclass
class Subject:
    """module: the code's. training: a run is forward and backward, and gradients are among the results."""

    module: Any
    target: str
    training: bool
    model: nn.Module

    def draw(self, number: int) -> list[Any]:
        """Inputs on the device; another number gives others."""
        torch.manual_seed(OTHER + number)
        made = on_device(self.target, self.module.get_inputs)
        values = list(made) if isinstance(made, list | tuple) else [made]
        return [self.placed(value) for value in values]

    def placed(self, value: Any) -> Any:
        """A tensor on the device, with a gradient to be had where it is trained."""
        if not isinstance(value, Tensor):
            return value
        value = value.to(self.target)
        return value.requires_grad_(self.training and value.is_floating_point())

    def run(self, call: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
        """Results of one run, and gradients where it is trained."""
        results, slopes = self.parts(call, inputs)
        return [*results, *slopes]

    def parts(
        self, call: Callable[..., Any], inputs: Sequence[Any]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Results of one run; gradients where it is trained, against numbers that do not change. Raises `NoTask` where
        it is trained and no result has one."""
        if not self.training:
            with torch.no_grad():
                return list(tensors(call(*inputs))), []
        results = list(tensors(call(*inputs)))
        learned = self.learned(inputs)
        lasting = [result for result in results if result.requires_grad]
        if not lasting:
            raise NoTask("no result has a gradient")
        slopes = torch.autograd.grad(
            lasting, learned, [cotangent(result) for result in lasting], allow_unused=True
        )
        found = [slope for slope in slopes if slope is not None]
        return [result.detach() for result in results], found

    def learned(self, inputs: Sequence[Any]) -> list[Tensor]:
        """What gradients are taken of."""
        given = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        return [*given, *(p for p in self.model.parameters() if p.requires_grad)]

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers of floating numbers, by name; tied ones once."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: value for name, value in named if value.is_floating_point()}


_cotangents: dict[tuple[Any, ...], Tensor] = {}


def forget() -> None:
    """Drop what is held of earlier tasks."""
    _cotangents.clear()


def on_device(target: str, make: Callable[[], Any]) -> Any:
    """What a function makes, drawn on the device, which is where it goes: for large tensors the processor would take
    most of a task's time. Code that cannot do that draws where it says."""
    if target == "cpu":
        return make()
    state = torch.random.get_rng_state()
    try:
        with torch.device(target):
            return make()
    except Exception:  # such as a generator of the processor
        torch.random.set_rng_state(state)
        return make()


def cotangent(result: Tensor) -> Tensor:
    """What the gradient of a result is taken against: numbers that do not change, made once."""
    key = (tuple(result.shape), result.dtype, result.device)
    if key not in _cotangents:
        generator = torch.Generator(device=result.device).manual_seed(COTANGENT_SEED)
        _cotangents[key] = torch.randn(
            result.shape, dtype=result.dtype, device=result.device, generator=generator
        )
    return _cotangents[key]


@contextmanager
def uninitialized_is_nan() -> Iterator[None]:
    """Within it, memory that nobody writes holds NaN: weights that a model leaves so are other ones each time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def built(
    request: ProbeRequest,
    folder: Path,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Subject:
    """The task of a request's code. turn: on the device, for what uses it: importing the code, and with it a library's
    layers, does not. Raises `NoTask`, and whatever the code raises."""
    file = folder / "task.py"
    file.write_text(request.code, encoding="utf-8")
    module = import_file(file)
    if isinstance(module, BadTarget):
        raise NoTask(module.reason)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not hasattr(module, name):
            raise NoTask(f"it has no {name}")
    torch.manual_seed(SEED)
    given = module.get_init_inputs()
    arguments = list(given) if isinstance(given, list | tuple) else [given]
    with turn():
        with uninitialized_is_nan():
            model = on_device(request.target, lambda: module.Model(*arguments))
        if not isinstance(model, nn.Module):
            raise NoTask("Model is no torch.nn.Module")
        held = sum(t.numel() * t.itemsize for t in model.state_dict().values())
        if held > request.memory_bytes:
            raise NoTask(f"its weights have {held} bytes")
        return Subject(module, request.target, request.training, model.eval().to(request.target))
