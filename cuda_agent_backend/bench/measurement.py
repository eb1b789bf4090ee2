"""The measure phase: one task compiled in each way, its results against a float64 oracle, and its times."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent_backend.bench.built_task import BuiltTask
from cuda_agent_backend.bench.floor import Floor, floor_of, lookups, unique_bytes, weights
from cuda_agent_backend.bench.in_pieces import OracleInPieces, oracle_in_pieces
from cuda_agent_backend.bench.positions import Positions
from cuda_agent_backend.bench.request import Request
from cuda_agent_backend.partition.report import HIT
from cuda_agent_backend.runtime.clocks import Clock, Samples, clock_of, sample_rounds
from cuda_agent_backend.runtime.inductor_timing import compiling
from cuda_agent_backend.tools.model_oracle import oracle, tensors
from sandbox.accuracy.nearby import several, while_there_is_room
from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.positions import PositionCheck
from sandbox.accuracy.report import AccuracyReport
from sandbox.accuracy.rule import Comparison, Draw, Nearby, compare
from sandbox.timing.decision import INTERIM_CONFIDENCE, control, interval, ratios
from sandbox.timing.device_lock import DeviceLock
from sandbox.timing.roofline import operations_of

DRAWS = 3
"""Inputs on which results are compared."""
NOISY_TRIES = 3
NARROW = 1.01
"""Upper over lower bound of a speed-up at which more rounds would tell nothing new."""
EAGER, INDUCTOR, AGAIN, OURS, AUTOTUNED = (
    "eager",
    "inductor",
    "inductor_again",
    "cuda_agent",
    "max_autotune",
)

Call = Callable[..., Any]


@dataclass(frozen=True)
class DrawCheck:
    """One draw. wrong: what is less accurate than both eager and Inductor, or of another shape; "" if nothing.

    as_inductor: less accurate than eager allows, but no more so than Inductor.
    """

    wrong: str
    as_inductor: bool
    error_ratio: float
    accuracy: AccuracyReport | None = None


@dataclass
class Contestants:
    """The compiled forms of a model, and why one could not be had.

    first_seconds: of each one's first call; torch's caches are shared, so these are no compile times to compare.
    """

    calls: dict[str, Call] = field(default_factory=dict)
    first_seconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def measure(task: BuiltTask, request: Request) -> dict[str, Any]:
    """All facts of one task, as JSON values."""
    from cuda_agent_backend.tools.explain import explain

    wishes = request.wishes
    lock = DeviceLock(Path(request.device_lock))
    with lock.shared():
        inputs = task.draw(wishes.seed)
    # Beside others' turns, but for what Inductor times; so the first call of each runs there once, which medians of
    # others bear.
    with torch.no_grad(), compiling(lock, wishes.target):
        contestants = compile_all(task, inputs, request)
    sliced = oracle_in_pieces(task.model, inputs) if wishes.target == "cuda" else None
    positions = Positions(task.model)
    if sliced is not None:
        inputs = ()  # one set of inputs is there at a time
    needed = sliced.held_bytes if sliced is not None else 0
    with leased(lock, needed, wishes.target):
        draws = []
        for draw in range(DRAWS):
            with torch.no_grad(), lock.shared():
                drawn = task.draw(wishes.seed + draw)
                draws.append(check(task, contestants.calls, drawn, sliced, positions))
                del drawn
        if sliced is not None:
            with lock.shared():
                inputs = task.draw(wishes.seed)
        with torch.no_grad(), lock.shared():
            floor = model_floor(task.model, inputs, request.ceilings or {})
        calls = {name: _bound(call, inputs) for name, call in contestants.calls.items()}
        with torch.no_grad(), lock.turn():
            clock = clock_of(wishes.target, [*weights(task.model), *tensors(inputs)])
            samples = samples_of(calls, clock, request)
        explanation = explain(task.model, *inputs, options=request.options("cached"), lock=lock)
    graphs = explanation.graphs
    return {
        "draws": [asdict(draw) for draw in draws],
        "samples": samples,
        "floor": floor.to_json(),
        "first_seconds": contestants.first_seconds,
        "missing": contestants.missing,
        "regions": sum(graph.wholes for graph in graphs),
        "kernels": sum(graph.count(HIT) for graph in graphs),
        "eager_layouts": sum(graph.eager_layouts for graph in graphs),
        "replayed": sum(graph.replayed for graph in graphs),
        "graphs": [graph.to_json() for graph in graphs],
        "codegen_bugs": explanation.bugs,
    }


@contextmanager
def leased(lock: DeviceLock, needed: int, target: str) -> Iterator[None]:
    """Hold a lease on so many bytes of the device, so that no search counts on them. Where they are not to be had, it
    goes on without: what then finds no memory is run again alone."""
    from sandbox.memory.device import CudaMemory
    from sandbox.memory.leases import Leases

    if target != "cuda" or not needed:
        yield
        return
    torch.cuda.empty_cache()
    with Leases(lock.path, CudaMemory(), in_turn=lambda: lock.in_turn).lease(needed, "bench"):
        yield


def compile_all(task: BuiltTask, inputs: Sequence[Any], request: Request) -> Contestants:
    """Eager, Inductor, ours in cached mode, and Inductor's max-autotune where it is asked for and works."""
    found = Contestants({EAGER: task.model})
    ways: dict[str, dict[str, Any]] = {
        OURS: {"backend": "cuda_agent", "options": request.options("cached")},
        INDUCTOR: {"backend": "inductor"},
    }
    for name, way in ways.items():
        _first_call(found, name, torch.compile(task.again(), **way), inputs)
    if request.wishes.max_autotune:
        try:
            _first_call(found, AUTOTUNED, torch.compile(task.again(), mode="max-autotune"), inputs)
        except Exception as error:
            found.missing[AUTOTUNED] = f"{type(error).__name__}: {error}"
    return found


def _first_call(found: Contestants, name: str, call: Call, inputs: Sequence[Any]) -> None:
    started = time.perf_counter()
    call(*inputs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    found.first_seconds[name] = time.perf_counter() - started
    found.calls[name] = call


def check(
    task: BuiltTask,
    calls: Mapping[str, Call],
    inputs: Sequence[Any],
    sliced: OracleInPieces | None = None,
    positions: Positions | None = None,
) -> DrawCheck:
    """Our outputs on one draw of inputs against eager's, Inductor's and the oracle's. sliced: of a large task.
    positions: of the task's model, which are known from draw to draw."""
    positions = positions or Positions(task.model)
    if sliced is not None:
        return check_in_pieces(calls, inputs, sliced, positions)
    ours, eager, plain = (_copied(calls[name](*inputs)) for name in (OURS, EAGER, INDUCTOR))
    wrong = mismatch(ours, eager)
    if wrong:
        return DrawCheck(wrong, False, 0.0)
    exact = _oracle(task.model, inputs)
    if exact and exact[0].device != ours[0].device:
        ours, eager, plain = (
            [t.to(exact[0].device) for t in each] for each in (ours, eager, plain)
        )
    places = positions.checks(inputs, ours)
    return accuracy_of(
        ours, eager, plain, exact, lambda: _nearby(task, calls[EAGER], inputs), places
    )


def check_in_pieces(
    calls: Mapping[str, Call],
    inputs: Sequence[Any],
    sliced: OracleInPieces,
    positions: Positions,
) -> DrawCheck:
    """The same rule as `accuracy_of`: what ours is held against is made when it is needed, and given up after it.

    Eager runs before ours, as what it works out on its way may take more than anything else; only where ours is beyond
    its error does it run again.
    """

    def against(others: Sequence[Tensor]) -> Comparison:
        made = Comparison()
        made.add(Draw(ours, others, [], places, pieces=lambda: sliced.pieces(inputs)))
        return made

    def nearby() -> Iterator[tuple[list[Tensor], Iterator[Piece]]]:
        for values in several([x for x in inputs if isinstance(x, Tensor)]):
            left = iter(values)
            near = [next(left) if isinstance(x, Tensor) else x for x in inputs]
            yield tensors(calls[EAGER](*near)), sliced.pieces(near)

    eager = tensors(calls[EAGER](*inputs))
    ours = tensors(calls[OURS](*inputs))
    wrong = mismatch(ours, eager)
    if wrong:
        return DrawCheck(wrong, False, 0.0)
    places = positions.checks(inputs, ours)
    report = against(eager).report()
    if report.passes:
        return DrawCheck("", False, report.error_ratio, report)
    del eager  # one other set of outputs is there at a time
    plain = tensors(calls[INDUCTOR](*inputs))
    if not mismatch(ours, plain) and against(plain).report().passes:
        return DrawCheck("", True, report.error_ratio, report)
    del plain
    report = against(tensors(calls[EAGER](*inputs))).report(lambda: while_there_is_room(nearby()))
    return DrawCheck(report.reason, False, report.error_ratio, report)


def _nearby(
    task: BuiltTask, eager: Call, inputs: Sequence[Any]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """See `sandbox.accuracy.rule.Nearby`."""
    for values in several([x for x in inputs if isinstance(x, Tensor)]):
        left = iter(values)
        near = [next(left) if isinstance(x, Tensor) else x for x in inputs]
        exact = _oracle(task.model, near)
        yield [t.to(exact[0].device) for t in _copied(eager(*near))], exact


def accuracy_of(
    ours: Sequence[Tensor],
    eager: Sequence[Tensor],
    plain: Sequence[Tensor],
    exact: Sequence[Tensor],
    nearby: Nearby | None = None,
    positions: Mapping[int, PositionCheck] | None = None,
) -> DrawCheck:
    """The rule: eager's error is the yardstick, or Inductor's where Inductor itself is beyond eager's."""
    report = compare(ours, eager, exact, positions)
    if report.passes:
        return DrawCheck("", False, report.error_ratio, report)
    if not mismatch(ours, plain) and compare(ours, plain, exact, positions).passes:
        return DrawCheck("", True, report.error_ratio, report)
    report = compare(ours, eager, exact, positions, nearby)
    return DrawCheck(report.reason, False, report.error_ratio, report)


def mismatch(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
    """What is wrong with number, dtype or shape of outputs; "" if nothing."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs instead of {len(wanted)}"
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            mine, theirs = ((t.dtype, tuple(t.shape)) for t in (one, other))
            return f"output {number} is {mine} instead of {theirs}"
    return ""


def _copied(outputs: Any) -> list[Tensor]:
    """Copies: CUDA graphs, which max-autotune uses, write to the same memory again."""
    return [tensor.clone() for tensor in tensors(outputs)]


def _oracle(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """The outputs in float64; computed on the CPU where the device has no room for them."""
    try:
        return oracle(model, inputs)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    on_cpu = [x.cpu() if isinstance(x, Tensor) else x for x in inputs]
    return oracle(copy.deepcopy(model).cpu(), on_cpu)


def model_floor(model: nn.Module, inputs: Sequence[Any], ceilings: Mapping[str, Any]) -> Floor:
    """The roofline floor of one call."""
    outputs: list[Tensor] = []
    with _frozen(model), lookups(model) as looked_up:
        operations = operations_of(lambda: outputs.extend(tensors(model(*inputs))))
    given = [*weights(model), *tensors(inputs)]
    read = unique_bytes(given)
    written = unique_bytes([*given, *outputs]) - read
    every = unique_bytes([*given, *model.parameters(), *outputs])
    floor = floor_of(read + looked_up.bytes, written, operations, ceilings)
    return replace(floor, tensors=every)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Within it no parameter requires gradients: torch's counter asks for those of what a module is given."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def samples_of(calls: Mapping[str, Callable[[], Any]], clock: Clock, request: Request) -> Samples:
    """Paired samples; taken anew, some times, while Inductor differs from itself."""
    wishes = request.wishes
    contestants = {**calls, AGAIN: calls[INDUCTOR]}
    for number in range(NOISY_TRIES):
        samples = sample_rounds(
            contestants,
            clock,
            rounds=wishes.rounds,
            seconds=wishes.seconds,
            seed=wishes.seed + number,
            enough=is_settled,
        )
        if control(samples["device"][INDUCTOR], samples["device"][AGAIN]).quiet:
            break
    return samples


def is_settled(samples: Samples) -> bool:
    """Whether all speed-ups by the device's clock are known to within `NARROW`: it ends rounds, whatever they say."""
    device = samples["device"]
    others = (ratios(own, device[OURS]) for name, own in device.items() if name != OURS)
    found = [interval(other, INTERIM_CONFIDENCE) for other in others]
    return all(one.high <= NARROW * one.low for one in found)


def _bound(call: Call, inputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: call(*inputs)
