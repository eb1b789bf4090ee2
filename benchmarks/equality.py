"""Is a compiled model equal to eager? Outputs, strides, aliasing, gradients and buffers of one step (contract C3)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cuda_agent_backend.tools.model_oracle import Widened, in_float64, tensors
from sandbox.accuracy.report import AccuracyReport
from sandbox.accuracy.rule import compare

Compile = Callable[[nn.Module], Callable[..., object]]


@dataclass(frozen=True)
class Step:
    """What one call left behind. ``named``: all whose values count. ``aliases``: (output, input) that share memory."""

    outputs: tuple[Tensor, ...]
    named: dict[str, Tensor]
    aliases: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Equality:
    """Whether all is equal, the worst error over eager's own, and the first difference.

    as_inductor: what is beyond eager's error but not beyond plain Inductor's, whose code runs wherever ours does not.
    """

    equal: bool
    error_ratio: float
    reason: str = ""
    as_inductor: tuple[str, ...] = ()


def step(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    train: bool,
    compile_model: Compile = lambda model: model,
    within: AbstractContextManager[object] | None = None,
) -> Step:
    """Call the model, backward too with ``train``, and collect what there is to compare. The model is used up."""
    model.train(train)
    given = [x.detach().clone().requires_grad_(train and x.is_floating_point()) for x in inputs]
    with within or nullcontext(), torch.set_grad_enabled(train):
        outputs = tensors(compile_model(model)(*given))
        if train:
            torch.autograd.backward(outputs, [_cotangent(x) for x in outputs])
    named = {f"output {i}": x.detach() for i, x in enumerate(outputs)}
    named |= {f"buffer {n}": b.detach().clone() for n, b in model.named_buffers()}
    if train:
        named |= {f"gradient of {n}": _grad(p, n) for n, p in model.named_parameters()}
        named |= {f"gradient of input {i}": _grad(x, str(i)) for i, x in enumerate(given)}
    return Step(tuple(outputs), named, _aliases(outputs, given))


def _grad(x: Tensor, name: str) -> Tensor:
    assert x.grad is not None, f"no gradient of {name}"
    return x.grad


def _cotangent(output: Tensor) -> Tensor:
    """Fixed normal values, the same in every precision."""
    source = torch.Generator().manual_seed(1)
    return torch.randn(output.shape, generator=source).to(output)


def _aliases(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> frozenset[tuple[int, int]]:
    def storage(x: Tensor) -> int:
        return x.untyped_storage().data_ptr()

    return frozenset(
        (i, j)
        for i, out in enumerate(outputs)
        for j, given in enumerate(inputs)
        if storage(out) == storage(given)
    )


def check(
    model: nn.Module,
    inputs: Sequence[Tensor],
    compile_model: Compile,
    *,
    train: bool,
    inductor: Compile | None = None,
) -> Equality:
    """One step compiled against one in eager mode, with a float64 step as the yardstick.

    inductor: plain Inductor, asked where something is beyond eager's error; None leaves it at that.
    """
    eager = step(copy.deepcopy(model), inputs, train=train)
    wide = step(in_float64(model), in_float64(list(inputs)), train=train, within=Widened())
    found = step(copy.deepcopy(model), inputs, train=train, compile_model=compile_model)
    different = _structure(found, eager)
    if different:
        return Equality(False, float("inf"), different)
    names = list(eager.named)
    report = _compare(names, found, eager, wide)
    beyond = tuple(names[o.number] for o in report.outputs if not o.passes)
    if not beyond or inductor is None:
        return Equality(report.passes, report.error_ratio, _first(names, report))
    rival = step(copy.deepcopy(model), inputs, train=train, compile_model=inductor)
    second = _compare(beyond, found, rival, wide)
    ratio = max(second.error_ratio, *(o.error_ratio for o in report.outputs if o.passes), 0.0)
    return Equality(second.passes, ratio, _first(beyond, second), beyond)


def _structure(found: Step, eager: Step) -> str:
    """The first difference that is not one of values, else empty."""
    if found.named.keys() != eager.named.keys():
        return "other outputs, gradients or buffers"
    if found.aliases != eager.aliases:
        return "other outputs share memory with inputs"
    for i, (own, theirs) in enumerate(zip(found.outputs, eager.outputs, strict=True)):
        if (own.dtype, own.shape, own.stride()) != (theirs.dtype, theirs.shape, theirs.stride()):
            return f"output {i} has another dtype, shape or stride"
    return ""


def _compare(names: Sequence[str], found: Step, yardstick: Step, wide: Step) -> AccuracyReport:
    return compare(*([s.named[name] for name in names] for s in (found, yardstick, wide)))


def _first(names: Sequence[str], report: AccuracyReport) -> str:
    wrong = next((o for o in report.outputs if not o.passes), None)
    return f"{names[wrong.number]}: {wrong.reason}" if wrong else ""
