"""Look at one task: it runs, what its results depend on, what the compiler sees, how long it takes."""

from __future__ import annotations

import copy
import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cuda_agent_backend.bench.floor import floor_of, lookups, unique_bytes
from cuda_agent_backend.bench.floor import weights as read_whole
from cuda_agent_backend.runtime.clocks import clock_of
from sandbox.timing.roofline import operations_of
from trainer.synthesis.filters.decide import Claim, why_dropped
from trainer.synthesis.probe.graphs import Seen, compiled
from trainer.synthesis.probe.request import ProbeRequest
from trainer.synthesis.probe.subject import SEED, NoTask, Subject, built, forget
from trainer.synthesis.probe.values import apart, described

QUICK_CALLS, ROUNDS = 3, 5
HALF = (torch.float16, torch.bfloat16)
SMALL_CHANGE = 0.1
"""A weight that is all zeros is moved by normal numbers of this size."""


class Device(Protocol):
    """Turns on the device (see `process.Turns`)."""

    def alone(self) -> AbstractContextManager[None]:
        """To time something."""

    def shared(self) -> AbstractContextManager[None]:
        """For other work on it."""

    def released(self) -> AbstractContextManager[None]:
        """Within a turn: others have it meanwhile."""


def probe(request: ProbeRequest, folder: Path, device: Device) -> dict[str, Any]:
    """The facts, as JSON values. What goes wrong is among them, as ``failed`` with ``stage``.

    A task that a filter drops on the facts so far is looked at no further: compiling costs most of all.
    """
    facts: dict[str, Any] = {"cpu_s": {}}
    claim = Claim(request.ops, request.dtype, request.exempt)
    subject: Subject | None = None
    inputs: list[Any] = []
    stage = "build"
    spent = _cpu_seconds()
    try:
        limit_device(request)
        with _shared(request, device):
            subject = built(
                request.code, folder, request.target, request.training, request.memory_bytes
            )
            inputs = subject.draw(0)
        facts |= _sizes(subject, inputs)
        if facts["bytes"] > request.memory_bytes:
            raise NoTask(f"inputs and weights have {facts['bytes']} bytes")
        for name, step in STEPS.items():
            facts["cpu_s"][stage], spent = _cpu_seconds() - spent, _cpu_seconds()
            stage = name
            step(request, subject, inputs, facts, device)
            if why_dropped(claim, facts, whole=False) is not None:
                break
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:300]
        facts |= {"failed": f"{type(error).__name__}: {first}", "stage": stage}
    facts["cpu_s"][stage] = _cpu_seconds() - spent
    return facts


def tidy(target: str) -> None:
    """Forget a task: the next one of this process is to find what the first one found."""
    forget()
    torch._dynamo.reset()
    gc.collect()
    if target == "cuda" and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _cpu_seconds() -> float:
    """Of this process and of the compilers that it started."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(found.ru_utime + found.ru_stime for found in used)


def _shared(request: ProbeRequest, device: Device) -> AbstractContextManager[None]:
    """On cpu what is not timed takes no turn: compilers take none either."""
    return device.shared() if request.target == "cuda" else nullcontext()


def limit_device(request: ProbeRequest) -> None:
    """Have this process take no more of a GPU's memory than it may."""
    if request.target == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, request.device_bytes / total))


def _sizes(subject: Subject, inputs: Sequence[Any]) -> dict[str, Any]:
    given = [x for x in inputs if isinstance(x, Tensor)]
    if not given:
        raise NoTask("no input is a tensor")
    held = subject.weights()
    return {
        "inputs": [{"shape": list(x.shape), "dtype": _dtype(x)} for x in given],
        "weights": [
            {"name": name, "shape": list(w.shape), "dtype": _dtype(w)} for name, w in held.items()
        ],
        "bytes": sum(x.numel() * x.itemsize for x in (*given, *held.values())),
    }


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _eager(
    request: ProbeRequest,
    subject: Subject,
    inputs: list[Any],
    facts: dict[str, Any],
    device: Device,
) -> None:
    """Run it, time it roughly."""
    with _shared(request, device):
        facts["outputs"] = described(subject.run(subject.model, inputs))
    with device.alone():
        facts["quick_s"] = _quick(lambda: subject.run(subject.model, inputs), request.target)
    facts["in_window"] = request.least_s <= facts["quick_s"] <= request.most_s


def _quick(call: Callable[[], Any], target: str) -> float:
    taken = []
    for _ in range(QUICK_CALLS + 1):
        _settle(target)
        before = time.perf_counter()
        call()
        _settle(target)
        taken.append(time.perf_counter() - before)
    return statistics.median(taken[1:])


def _settle(target: str) -> None:
    if target == "cuda":
        torch.cuda.synchronize()


def _values(
    request: ProbeRequest,
    subject: Subject,
    inputs: list[Any],
    facts: dict[str, Any],
    device: Device,
) -> None:
    """What results depend on: drawing, each input, each weight.

    In float32 without TF32: in shorter formats rounding hides that a weight is cancelled by what follows.
    """
    with _shared(request, device), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        other = subject.draw(1)
        exact = _in_float32(subject, inputs)
        if exact is not subject:
            inputs, other = [[_longer(x) for x in given] for given in (inputs, other)]
        _dependence(exact, inputs, other, facts)


def _in_float32(subject: Subject, inputs: list[Any]) -> Subject:
    """The same task in float32; as it is where it does not run so."""
    if all(x.dtype not in HALF for x in subject.weights().values()) and all(
        x.dtype not in HALF for x in inputs if isinstance(x, Tensor)
    ):
        return subject
    model = copy.deepcopy(subject.model).float()
    exact = Subject(subject.module, subject.target, subject.training, model)
    try:
        exact.run(model, [_longer(x) for x in inputs])
    except Exception:  # code with a dtype of its own within
        return subject
    return exact


def _longer(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype not in HALF:
        return value
    return value.detach().float().requires_grad_(value.requires_grad)


def _dependence(
    subject: Subject, inputs: list[Any], other: list[Any], facts: dict[str, Any]
) -> None:
    """Of results alone: gradients differ with what they are taken of."""
    subject = replace(subject, training=False)
    first = subject.run(subject.model, inputs)
    torch.manual_seed(SEED + 1)
    facts["again"] = apart(first, subject.run(subject.model, inputs))
    facts["other_inputs"] = apart(first, subject.run(subject.model, other))
    facts["by_input"] = [
        _with_input(subject, inputs, other, number, first)
        for number, value in enumerate(inputs)
        if isinstance(value, Tensor)
    ]
    generator = torch.Generator(subject.target).manual_seed(SEED)
    facts["by_weight"] = {
        name: _with_weight(subject, inputs, weight, first, generator)
        for name, weight in subject.weights().items()
    }


def _with_input(
    subject: Subject, inputs: list[Any], other: list[Any], number: int, first: Sequence[Tensor]
) -> float:
    mixed = [*inputs[:number], other[number], *inputs[number + 1 :]]
    found = subject.run(subject.model, mixed)
    return apart(first, found)


def _with_weight(
    subject: Subject,
    inputs: list[Any],
    weight: Tensor,
    first: Sequence[Tensor],
    generator: torch.Generator,
) -> float:
    kept = weight.detach().clone()
    with torch.no_grad():
        spread = float(kept.float().std()) if kept.numel() > 1 else 0.0
        noise = torch.randn(kept.shape, generator=generator, device=kept.device)
        changed = kept.float() + noise * max(spread, SMALL_CHANGE)
        # A variance stays one.
        weight.copy_(changed.abs() if bool((kept >= 0).all()) else changed)
    found = subject.run(subject.model, inputs)
    with torch.no_grad():
        weight.copy_(kept)
    return apart(first, found)


def _compile(
    request: ProbeRequest,
    subject: Subject,
    inputs: list[Any],
    facts: dict[str, Any],
    device: Device,
) -> None:
    """Compile it, compare, and note what the compiler sees."""
    seen = Seen()
    call = compiled(subject.model, seen, device.released, headers=not request.alone)
    with _shared(request, device):
        found = subject.run(call, inputs)
        facts["error"] = apart(subject.run(subject.model, inputs), found)
    facts |= {
        "used": dict(sorted(seen.used.items())),
        "random": sorted(set(seen.random)),
        "regions": seen.regions,
        "left": sorted(seen.left),
        "graphs": sorted(seen.graphs),
        "structures": sorted(seen.structures),
    }
    subject.module.compiled = call


def _times(
    request: ProbeRequest,
    subject: Subject,
    inputs: list[Any],
    facts: dict[str, Any],
    device: Device,
) -> None:
    """Times of eager and Inductor with cold caches, in turn; the floor of the forward pass; memory."""
    calls = {"eager_s": subject.model, "inductor_s": subject.module.compiled}
    cold = [x for x in (*inputs, *subject.weights().values()) if isinstance(x, Tensor)]
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with device.alone():
        clock = clock_of(request.target, cold)
        for number in range(ROUNDS + 1):
            for name, call in calls.items():
                seconds = clock.time(partial(subject.run, call, inputs))[0]
                samples[name] += [seconds] * bool(number)
    facts |= {name: statistics.median(found) for name, found in samples.items()}
    if request.ceilings:
        with _shared(request, device):
            facts["floor_s"] = _floor(subject, inputs, request)
    if request.target == "cuda":
        facts["peak_bytes"] = torch.cuda.max_memory_allocated()


def _floor(subject: Subject, inputs: list[Any], request: ProbeRequest) -> float:
    """Seconds that bytes and products of the forward pass take at least; a backward pass is not counted."""
    model: nn.Module = subject.model
    outputs: list[Tensor] = []
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    plain = [x.detach() if isinstance(x, Tensor) else x for x in inputs]
    forward = Subject(subject.module, subject.target, False, model)
    with lookups(model) as looked_up:
        operations = operations_of(lambda: outputs.extend(forward.run(model, plain)))
    given = [*read_whole(model), *(x for x in plain if isinstance(x, Tensor))]
    read = unique_bytes(given)
    written = unique_bytes([*given, *outputs]) - read
    return floor_of(read + looked_up.bytes, written, operations, request.ceilings).seconds


STEPS: dict[str, Callable[[ProbeRequest, Subject, list[Any], dict[str, Any], Device], None]] = {
    "eager": _eager,
    "values": _values,
    "compile": _compile,
    "times": _times,
}
