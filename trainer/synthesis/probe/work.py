"""Look at one task: it runs, what its results depend on, what the compiler sees, how long it takes."""

from __future__ import annotations

import copy
import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
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
from trainer.synthesis.probe.graphs import MeanwhileAndAlone, Seen, compiled
from trainer.synthesis.probe.request import CROWDED, ProbeRequest
from trainer.synthesis.probe.subject import SEED, NoTask, Subject, built, forget
from trainer.synthesis.probe.values import apart, described

QUICK_CALLS, ROUNDS = 3, 5
FAR_BEYOND = 0.5
"""Seconds, or the longest time wanted where that is more: a call that takes longer is made once only."""
STRETCH_S = 0.25
"""How long a task has the device in a turn for its comparisons, at least one of them."""
HALF = (torch.float16, torch.bfloat16)
SMALL_CHANGE = 0.1
"""A weight that is all zeros is moved by normal numbers of this size."""


class Device(Protocol):
    """Turns on the device (see `process.Turns`)."""

    def alone(self) -> AbstractContextManager[None]:
        """To time something."""

    def shared(self) -> AbstractContextManager[None]:
        """For other work on it."""


@dataclass(frozen=True)
class Look:
    """What each step works with: the task as it was asked for and as it was built, inputs for it, the facts so far, to
    which a step adds, and the device."""

    request: ProbeRequest
    subject: Subject
    inputs: list[Any]
    facts: dict[str, Any]
    device: Device

    def run(self, call: Callable[..., Any]) -> list[Tensor]:
        """Results of the task's inputs; call: its model, or what was compiled of it."""
        return self.subject.run(call, self.inputs)

    def alone(self) -> AbstractContextManager[None]:
        """To time something; on cpu what a compiler times takes no turn."""
        return self.device.alone() if self.request.target == "cuda" else nullcontext()

    def shared(self) -> AbstractContextManager[None]:
        """For work on the device that times nothing. Short turns: who wants the device alone waits for all that share
        it, and meanwhile it idles."""
        return _shared(self.request, self.device)


def probe(request: ProbeRequest, folder: Path, device: Device) -> dict[str, Any]:
    """The facts, as JSON values. What goes wrong is among them, as ``failed`` with ``stage``.

    A task that a filter drops on the facts so far is looked at no further: compiling costs most of all.
    """
    facts: dict[str, Any] = {"cpu_s": {}}
    claim = Claim(request.ops, request.dtype, request.exempt)
    stage = "build"
    spent = _cpu_seconds()
    try:
        limit_device(request)
        subject = built(request, folder, partial(_shared, request, device))
        with _shared(request, device):
            inputs = subject.draw(0)
        facts |= _sizes(subject, inputs)
        if facts["bytes"] > request.memory_bytes:
            raise NoTask(f"inputs and weights have {facts['bytes']} bytes")
        look = Look(request, subject, inputs, facts, device)
        for name, step in STEPS.items():
            facts["cpu_s"][stage], spent = _cpu_seconds() - spent, _cpu_seconds()
            stage = name
            step(look)
            if why_dropped(claim, facts, whole=False) is not None:
                break
    except Exception as error:
        facts |= {"failed": said(error), "stage": stage}
        if is_crowded(error, request):
            facts["stage"] = CROWDED
    facts["cpu_s"][stage] = _cpu_seconds() - spent
    return facts


def is_crowded(error: Exception, request: ProbeRequest) -> bool:
    """Whether it found no memory because others have it, and not because it needs more than it may take."""
    if not isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    free = torch.cuda.mem_get_info()[0]
    return free + torch.cuda.memory_reserved() < request.device_bytes


def said(error: Exception) -> str:
    """A line about an error; what a compiler raised rather than what torch put around it."""
    while (inner := getattr(error, "inner_exception", None)) is not None:
        error = inner
    first = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {first}"


def tidy(target: str) -> None:
    """Forget a task: the next one of this process is to find what the first one found."""
    forget()
    torch._dynamo.reset()
    gc.collect()
    if target == "cuda" and torch.cuda.is_initialized():
        _give_back(target)
        torch.cuda.reset_peak_memory_stats()


def _give_back(target: str) -> None:
    """Give memory that the allocator keeps for later back to the device: compiling takes seconds, in which others can
    use it."""
    if target == "cuda":
        torch.cuda.empty_cache()


def _cpu_seconds() -> float:
    """Of this process and of the compilers that it started."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(found.ru_utime + found.ru_stime for found in used)


@contextmanager
def _shared(request: ProbeRequest, device: Device) -> Iterator[None]:
    """On cpu what is not timed takes no turn: compilers take none either."""
    with device.shared() if request.target == "cuda" else nullcontext():
        yield
        _settle(request.target)


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


def _eager(look: Look) -> None:
    """Run it, time it roughly."""
    request, model = look.request, look.subject.model
    with look.shared():
        results, slopes = look.subject.parts(model, look.inputs)
        look.facts["outputs"] = described(results)
        if request.training:
            look.facts["slopes"] = described(slopes)
        del results, slopes  # it is timed with no more memory held than it needs
    with look.device.alone():
        seconds = _quick(lambda: look.run(model), request.target, max(FAR_BEYOND, request.most_s))
    look.facts["quick_s"] = seconds
    look.facts["in_window"] = request.least_s <= seconds <= request.most_s


def _quick(call: Callable[[], Any], target: str, most_s: float) -> float:
    """Seconds of a call; of the first one where that takes more than `most_s`."""
    taken: list[float] = []
    for _ in range(QUICK_CALLS + 1):
        if taken and taken[0] > most_s:
            return taken[0]
        _settle(target)
        before = time.perf_counter()
        call()
        _settle(target)
        taken.append(time.perf_counter() - before)
    return statistics.median(taken[1:])


def _settle(target: str) -> None:
    if target == "cuda":
        torch.cuda.synchronize()


def _values(look: Look) -> None:
    """What results depend on: drawing, each input, each weight.

    In float32 without TF32: in shorter formats rounding hides that a weight is cancelled by what follows.
    """
    subject, inputs = look.subject, look.inputs
    with (
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        _Stretches(look.shared) as turns,
    ):
        with turns.turn():
            other = subject.draw(1)
            exact = _in_float32(subject, inputs)
            if exact is not subject:
                inputs, other = [[_longer(x) for x in given] for given in (inputs, other)]
            # Of results alone: gradients differ with what they are taken of.
            plain = replace(exact, training=False)
            as_it_is = _AsItIs(plain, inputs, plain.run(plain.model, inputs), turns.turn)
        _dependence(as_it_is, other, look.facts)


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


@dataclass(frozen=True)
class _AsItIs:
    """A task with inputs and what it makes of them, to compare with what it makes when something is changed. turn: on
    the device, for each comparison."""

    subject: Subject
    inputs: list[Any]
    results: list[Tensor]
    turn: Callable[[], AbstractContextManager[None]]

    def apart(self, inputs: list[Any]) -> float:
        """How far apart results of other inputs are."""
        with self.turn():
            return self._apart(inputs)

    def with_weight(self, weight: Tensor, generator: torch.Generator) -> float:
        """How far apart results are with another weight, which is put back."""
        with self.turn():
            kept = weight.detach().clone()
            with torch.no_grad():
                weight.copy_(_other_weight(kept, generator))
            found = self._apart(self.inputs)
            with torch.no_grad():
                weight.copy_(kept)
            return found

    def _apart(self, inputs: list[Any]) -> float:
        return apart(self.results, self.subject.run(self.subject.model, inputs))


def _dependence(as_it_is: _AsItIs, other: list[Any], facts: dict[str, Any]) -> None:
    subject, inputs = as_it_is.subject, as_it_is.inputs
    torch.manual_seed(SEED + 1)
    facts["again"] = as_it_is.apart(inputs)
    facts["other_inputs"] = as_it_is.apart(other)
    facts["by_input"] = [
        as_it_is.apart([*inputs[:number], other[number], *inputs[number + 1 :]])
        for number, value in enumerate(inputs)
        if isinstance(value, Tensor)
    ]
    generator = torch.Generator(subject.target).manual_seed(SEED)
    facts["by_weight"] = {
        name: as_it_is.with_weight(weight, generator) for name, weight in subject.weights().items()
    }


def _other_weight(kept: Tensor, generator: torch.Generator) -> Tensor:
    """In float32; a variance stays one."""
    spread = float(kept.float().std()) if kept.numel() > 1 else 0.0
    noise = torch.randn(kept.shape, generator=generator, device=kept.device)
    changed = kept.float() + noise * max(spread, SMALL_CHANGE)
    return changed.abs() if bool((kept >= 0).all()) else changed


class _Stretches:
    """Turns that follow at once are one, until it has lasted `STRETCH_S`: before each new one all have their turn who
    wait for the device alone, and a task has as many comparisons as weights."""

    def __init__(self, take: Callable[[], AbstractContextManager[None]]) -> None:
        self._take, self._turn = take, ExitStack()
        self._began: float | None = None

    def __enter__(self) -> _Stretches:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Work that needs the device."""
        if self._began is None:
            self._turn.enter_context(self._take())
            self._began = time.monotonic()
        yield
        if time.monotonic() - self._began > STRETCH_S:
            self._end()

    def _end(self) -> None:
        self._turn.close()
        self._began = None


class _WhileRunning:
    """A turn on the device that is not held while a task is traced and compiled, which takes the processor for seconds:
    it begins once that is done, and whoever asks for the device alone meanwhile gets it."""

    def __init__(self, take: Callable[[], AbstractContextManager[None]]) -> None:
        self._take, self._turn = take, ExitStack()
        self._held = self._over = False
        self._compiling = 0

    def begin(self) -> None:
        """Have the turn, unless it is held already."""
        if not self._held:
            self._turn.enter_context(self._take())
            self._held = True

    def end(self) -> None:
        """Give it up for good."""
        self._pause()
        self._over = True

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Within it the turn is not held; it begins afterwards."""
        if self._over:
            yield
            return
        self._compiling += 1
        self._pause()
        try:
            yield
        finally:
            self._compiling -= 1
            if not self._compiling:
                self.begin()

    def _pause(self) -> None:
        self._turn.close()
        self._held = False


def _compile(look: Look) -> None:
    """Compile it, compare, and note what the compiler sees."""
    with look.shared():
        _give_back(look.request.target)
    seen = Seen()
    subject, running = look.subject, _WhileRunning(look.shared)
    turns = MeanwhileAndAlone(running.compiling, look.alone)
    call = compiled(subject.model, seen, turns, headers=not look.request.alone)
    try:
        if any(op.startswith("transformers.") for op in look.request.ops):
            running.begin()  # a layer may have parts that run before the first one is compiled
        found = look.run(call)
        running.begin()  # where nothing was compiled
        look.facts["error"] = apart(look.run(subject.model), found)
    finally:
        running.end()
    look.facts.update(
        used=dict(sorted(seen.used.items())),
        random=sorted(set(seen.random)),
        regions=seen.regions,
        left=sorted(seen.left),
        graphs=sorted(seen.graphs),
        structures=sorted(seen.structures),
    )
    subject.module.compiled = call


def _times(look: Look) -> None:
    """Times of eager and Inductor with cold caches, in turn; the floor of the forward pass; memory."""
    request, subject, inputs = look.request, look.subject, look.inputs
    calls = {"eager_s": subject.model, "inductor_s": subject.module.compiled}
    cold = [x for x in (*inputs, *subject.weights().values()) if isinstance(x, Tensor)]
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with look.device.alone():
        clock = clock_of(request.target, cold)
        for number in range(ROUNDS + 1):
            for name, call in calls.items():
                seconds = clock.device_s(partial(look.run, call))
                samples[name] += [seconds] * bool(number)
    look.facts.update((name, statistics.median(found)) for name, found in samples.items())
    if request.ceilings:
        with look.shared():
            look.facts["floor_s"] = _floor(subject, inputs, request)
    if request.target == "cuda":
        look.facts["peak_bytes"] = torch.cuda.max_memory_allocated()


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


STEPS: dict[str, Callable[[Look], None]] = {
    "eager": _eager,
    "values": _values,
    "compile": _compile,
    "times": _times,
}
