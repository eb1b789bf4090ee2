"""Whole-graph acceptance (contract C5): with which of its kernels a graph, as a whole, is no slower and no less exact.

`decide` is the rule, over any measurement. The measurement itself (`python -m cuda_agent_backend.acceptance.process`,
one JSON request on standard input, JSON lines on standard output) compiles the graph with and without the kernels and
runs both in turn, in a process of its own: whatever happens there is a value here.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.acceptance.rule import (
    LAYOUTS_MEDIAN,
    LOWER_BOUND,
    MEDIAN,
    REPLAY_MEDIAN,
    Acceptance,
    Measured,
    brings,
    decide,
    decide_layouts,
    is_decided,
)
from sandbox.graph.build import build_graph

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from cuda_agent_backend.partition.regions import Region
    from cuda_agent_backend.partition.splice import Replacement
    from cuda_agent_backend.runtime.clocks import Samples
    from kernel_cache import KernelKey
    from sandbox.accuracy.compare import Nearby
    from sandbox.task.specs import TensorSpec
    from sandbox.task.task import Task
    from sandbox.timing.decision import Interval
    from sandbox.timing.device_lock import DeviceLock

ROUNDS, ROUND_LIMIT_S = 60, 20.0
LONGER = 3
"""Times as many rounds follow where the wall clock cannot tell."""

AHEAD = "ahead"
"""The argument of a process that is started before there is a request."""
NEEDED = (
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "cuda_agent_backend.runtime.kernels",
)
"""Takes long to import."""

Call = Callable[[Sequence["torch.Tensor"]], list["torch.Tensor"]]


def keys_of(request: Mapping[str, Any]) -> list[KernelKey]:
    """The kernels that a request names."""
    from kernel_cache.fields import Fields
    from kernel_cache.record import key_from

    return [key_from(Fields("request.kernels", fields)) for fields in request["kernels"]]


@dataclass(frozen=True)
class Ground:
    """Inputs of a graph, and what eager, the oracle and plain Inductor make of them."""

    inputs: Sequence[torch.Tensor]
    eager: Sequence[torch.Tensor]
    oracle: Sequence[torch.Tensor]
    reference: Sequence[torch.Tensor]


class Trial:
    """The graph without and with kernels, compiled, on common inputs. Used in a process of its own.

    lock: by which it takes turns on the device with other processes. recorded: a folder with real inputs of the graph.
    still: which inputs are parameters; None for a graph that is not to be replayed. origins: of its operators.
    Results are compared on drawn inputs and on real ones; calls are timed on the real ones, since what is in them may
    decide how fast a gather is, but not where a first call on dummies makes nothing but one number, or NaN, of them.
    """

    def __init__(
        self,
        task: Task,
        inductor: Mapping[str, Any],
        seed: int,
        lock: DeviceLock,
        recorded: Path | None = None,
        still: Sequence[int] | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        from sandbox.graph.operators import device_of

        self.still, self.replays = still, False
        self.task, self.inductor, self.device = task, dict(inductor), device_of(task.target)
        self.lock, self.origins = lock, origins
        self._loaded: list[Call] = []
        self._module, self._seed = build_graph(task), seed
        real = recorded and _loaded(recorded, task.inputs)
        with lock.shared():
            drawn = self._drawn(seed)
        self._numbers = self._drawing(drawn)
        self.plain = self._compile(self._built(), drawn)
        self.grounds = [self._ground(drawn)]
        if real:
            self.grounds.append(self._ground(self._placed(real)))
        self.on_real_inputs = vary(self.grounds[-1].eager) and len(self.grounds) > 1
        self.timed = self.grounds[-1 if self.on_real_inputs else 0].inputs

    def _built(self) -> torch.fx.GraphModule:
        """The graph as it was, for Inductor to write for it what it writes for the model."""
        from cuda_agent_backend.graph.origins import restore

        module = build_graph(self.task)
        restore(module.graph, self.origins)
        return module

    def _drawing(self, inputs: Sequence[torch.Tensor]) -> Call | None:
        """What draws the graph's random numbers for eager and the oracle; None where it has none."""
        from cuda_agent_backend.acceptance.rng_replay import only_draws, read_from_buffers

        drawing = only_draws(self._module)
        if drawing is None:
            return None
        read_from_buffers(self._module)
        call = self._compile(drawing, inputs)
        self._outputs(call, inputs)  # within a shared turn it could not be loaded
        return call

    def _drawn(self, seed: int) -> list[torch.Tensor]:
        from sandbox.accuracy.bounds import input_bounds
        from sandbox.accuracy.inputs import make_inputs

        bounds = input_bounds(self.task)
        drawn = make_inputs(self.task.inputs, seed, "normal", bounds, self.device)
        calm(drawn)
        return self._as_modules_keep_them(drawn)

    def _placed(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from sandbox.accuracy.perturb_inputs import on_device

        return self._as_modules_keep_them(
            [on_device(tensor, str(self.device)) for tensor in tensors]
        )

    def _as_modules_keep_them(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        from sandbox.accuracy.bounds import recurrent_weights
        from sandbox.accuracy.inputs import lay_together

        for weights in recurrent_weights(self.task):
            lay_together(tensors, weights)
        return tensors

    def _ground(self, inputs: Sequence[torch.Tensor]) -> Ground:
        plain = self._outputs(self.plain, inputs)
        with self.lock.shared():
            return Ground(inputs, *self._expected(inputs), plain)

    def _outputs(self, call: Call, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call makes of inputs. All that it loads, and has timed by Inductor, takes a call before that in which
        only the timing takes turns: loading takes seconds, and the medians of others bear one call beside them."""
        import torch

        from cuda_agent_backend.runtime.inductor_timing import compiling

        if call not in self._loaded:
            with compiling(self.lock, self.task.target):
                call(inputs)
            self._loaded.append(call)
        with self.lock.shared():
            torch.manual_seed(self._seed)  # the same random numbers for all
            return call(inputs)

    def _expected(
        self, inputs: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """Eager's and the oracle's outputs."""
        from cuda_agent_backend.acceptance.rng_replay import fill
        from sandbox.accuracy.oracle import run_eager, run_oracle

        if self._numbers is not None:
            fill(self._module, self._outputs(self._numbers, inputs))
        oracle = run_oracle(self.task, self._module, inputs).outputs
        return run_eager(self._module, inputs), oracle

    def measure(self, kernels: Sequence[str]) -> Measured:
        """Compile the graph with these kernels and compare it with plain Inductor."""
        module = self._built()
        with self._options():
            missing = insert(module, frozenset(kernels))
        if missing:
            return Measured(
                0, 0, 0, False, f"{len(missing)} kernels have no place in the rebuilt graph"
            )
        spliced = self._compile(module, self.timed)
        spliced = self._replayed(spliced) if self.replays else spliced
        return self._compare(spliced, seed=len(kernels), least=MEDIAN)

    def measure_replay(self) -> Measured:
        """Replay Inductor's code and compare it with launching it. From then on it is replayed if that is better."""
        replayed = self._replayed(self.plain)
        found = self._compare(replayed, seed=0, least=REPLAY_MEDIAN)
        if brings(found, REPLAY_MEDIAN):
            self.plain, self.replays = replayed, True
        return found

    def _replayed(self, call: Call) -> Call:
        from cuda_agent_backend.runtime.cuda_graph import Replayed

        made = Replayed(lambda *given: call(given), self.still or ())
        return lambda given: list(made(*given))

    def measure_layouts(self) -> Measured:
        """Compile the graph with eager's layouts and compare it with plain Inductor."""
        from cuda_agent_backend.graph.layouts import EAGERS

        laid_out = self._compile(self._built(), self.timed, **EAGERS)
        return self._compare(laid_out, seed=0, least=LAYOUTS_MEDIAN)

    def _compare(self, spliced: Call, seed: int, least: float) -> Measured:
        """least: the median that is asked for, by one clock."""
        from cuda_agent_backend.partition.report import finite

        worst = 0.0
        for ground in self.grounds:
            wrong, ratio = self._less_accurate(spliced, ground)
            worst = max(worst, ratio)
            if wrong:
                reason = f"the whole graph is less accurate: {wrong}"
                return Measured(0, 0, 0, False, reason, finite(worst))
        with self.lock.turn():
            found = self._speedups(spliced, seed, least)
        decides = found.get("device") or found["wall"]
        wall = found["wall"] if "device" in found else None
        bounds = decides.median, decides.low, decides.high
        return Measured(*bounds, True, "", finite(worst), wall, self.on_real_inputs)

    def _less_accurate(self, spliced: Call, ground: Ground) -> tuple[str, float]:
        from sandbox.accuracy.nearby import several, while_there_is_room

        found = self._outputs(spliced, ground.inputs)
        with self.lock.shared():
            return less_accurate(
                found,
                ground.reference,
                ground.eager,
                ground.oracle,
                lambda: while_there_is_room(map(self._expected, several(ground.inputs))),
            )

    def _speedups(self, spliced: Call, seed: int, least: float) -> dict[str, Interval]:
        """By the clock's name. Where the wall clock neither proves nor rules out a loss, and the other proves none, it
        is asked for longer."""
        from sandbox.timing.decision import interval, ratios

        def speedups(samples: Samples) -> dict[str, Interval]:
            return {
                name: interval(ratios(own["plain"], own["spliced"]))
                for name, own in samples.items()
            }

        calls = {
            "plain": lambda: self.plain(self.timed),
            "spliced": lambda: spliced(self.timed),
        }
        enough = functools.partial(is_decided, least=least)
        samples = _samples(calls, self.task.target, ROUNDS, seed, enough)
        found = speedups(samples)
        lost = any(one.high < LOWER_BOUND for one in found.values())
        if "device" not in found or found["wall"].median >= 1 or lost:
            return found
        more = _samples(calls, self.task.target, LONGER * ROUNDS, seed + 1)
        return speedups(
            {
                kind: {name: own + more[kind][name] for name, own in by_name.items()}
                for kind, by_name in samples.items()
            }
        )

    def _compile(
        self, module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], **more: Any
    ) -> Call:
        from torch._inductor.compile_fx import compile_fx_inner

        with self._options(**more):
            compiled: Any = compile_fx_inner(module, inputs, is_inference=True)
        call = getattr(compiled, "current_callable", None) or compiled
        return lambda given: list(call(list(given)))

    def _options(self, **more: Any) -> AbstractContextManager[None]:
        """Inductor's options, without our pass."""
        from torch._inductor import config

        patches = {**self.inductor, **more, "post_grad_custom_post_pass": None}
        patched: AbstractContextManager[None] = config.patch(patches)
        return patched


def _samples(
    calls: Mapping[str, Callable[[], Any]],
    target: str,
    rounds: int,
    seed: int,
    enough: Callable[[Samples], bool] | None = None,
) -> Samples:
    """Seconds by clock ("wall", on cuda also "device") and call. On cuda each is made after the L2 was flushed, and
    `enough` ends it."""
    from cuda_agent_backend.acceptance.measure import paired_samples
    from cuda_agent_backend.runtime.clocks import clock_of, take

    if target == "cuda":
        clock = clock_of("cuda", ())
        return take(calls, clock, rounds=rounds, seconds=ROUND_LIMIT_S, seed=seed, enough=enough)
    return {"wall": paired_samples(calls, rounds=rounds, limit_s=ROUND_LIMIT_S, seed=seed)}


def vary(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an output holds two different finite numbers."""
    for output in outputs:
        known = output[output.isfinite()]
        if known.numel() and bool((known != known[0]).any()):
            return True
    return False


def _loaded(folder: Path, specs: Sequence[TensorSpec]) -> Sequence[torch.Tensor] | None:
    """The tensors in a folder; None where they cannot be read or are not what is specified."""
    from cuda_agent_backend.runtime.tensor_files import are_of, load

    try:
        found = load(folder)
    except (OSError, ValueError):
        return None
    return found if are_of(found, specs) else None


def calm(inputs: Sequence[torch.Tensor]) -> None:
    """Scale matrices and filters in place as networks initialise them, by the root of a row's length.

    Weights of size one let activations grow from layer to layer until they are infinite: then nothing is compared, and
    what is timed is how kernels deal with NaN.
    """
    from sandbox.accuracy.perturb_inputs import flat_storage

    for tensor in inputs:
        if tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel():
            flat_storage(tensor).div_(math.sqrt(tensor[0].numel()))


def insert(module: torch.fx.GraphModule, kernels: frozenset[str]) -> frozenset[str]:
    """Splice the kernels (key digests, bound already) wherever their regions are; those that found no place.

    The kernel of what is beside a product has a place also where one for the whole region is used.
    """
    from cuda_agent_backend.graph.layouts import inductor_layouts
    from cuda_agent_backend.partition.regions import partition
    from cuda_agent_backend.partition.splice import choose, splice

    with inductor_layouts(module.graph):
        ways = [dict(_ways(region)) for region in partition(module.graph)]
        splice(module.graph, choose(ways, kernels))
    module.recompile()
    return kernels - {kernel for way in ways for kernel in way}


def _ways(region: Region) -> Iterator[tuple[str, Replacement]]:
    """By kernel what could be put in the place of a region or of its rest."""
    from cuda_agent_backend.graph.canonical import Canonical, canonical
    from cuda_agent_backend.partition.splice import Replacement
    from cuda_agent_backend.runtime.machine import key_of

    for one in (region, region.rest):
        if one is not None and one.reason is None:
            form = canonical(one.nodes, one.outputs, one.target)
            if isinstance(form, Canonical):
                key = key_of(form.task)
                yield key.digest, Replacement(one, form, key.op_key)


def less_accurate(
    outputs: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    oracle: Sequence[torch.Tensor],
    nearby: Nearby | None = None,
) -> tuple[str, float]:
    """What is less accurate than both eager and Inductor ("" if nothing), and the worst error ratio to eager.

    Integers and booleans follow from values that round differently: no more of them may differ from eager than twice as
    many as do under Inductor, plus one in ten thousand.
    """
    from sandbox.accuracy.compare import compare

    worst = 0.0
    for number, (ours, theirs, plain, exact) in enumerate(
        zip(outputs, reference, eager, oracle, strict=True)
    ):
        if not plain.dtype.is_floating_point:
            allowed = 2 * _differing(theirs, plain) + 1e-4
            if _differing(ours, plain) > allowed:
                return f"output {number}: more than {allowed:.2%} of it differs", worst
            continue
        against_eager = compare([ours], [plain], [exact])
        worst = max(worst, against_eager.error_ratio)
        if against_eager.passes or compare([ours], [theirs], [exact]).passes:
            continue
        in_doubt = compare([ours], [plain], [exact], nearby=_of_output(number, nearby))
        if not in_doubt.passes:
            return f"output {number}: {in_doubt.outputs[0].reason}", worst
    return "", worst


def _of_output(number: int, nearby: Nearby | None) -> Nearby | None:
    if nearby is None:
        return None
    return lambda: (([eager[number]], [oracle[number]]) for eager, oracle in nearby())


def _differing(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left != right).double().mean()) if left.numel() else 0.0


def run(request: Mapping[str, Any], say: Callable[[str], None]) -> Acceptance | str:
    """Carry a request out: {"graph", "kernels": key digests, "cache_dir", "native_dir", "inductor", "budget_s",
    "flags", "seed", "device_lock", "inputs": a folder of real ones or none, "eager_layouts", "still": which inputs are
    parameters, or null where the graph is not to be replayed, "origins": of its operators}. Without kernels it is what
    else is asked for."""
    from pathlib import Path

    from cuda_agent_backend.graph.layouts import EAGERS
    from cuda_agent_backend.runtime.inductor_timing import in_turns
    from cuda_agent_backend.runtime.kernels import Hit, lower_bound, open_kernels
    from cuda_agent_backend.runtime.machine import apply_flags
    from kernel_cache import CacheUnavailable
    from sandbox.task.task import Task
    from sandbox.timing.device_lock import DeviceLock

    lock = DeviceLock(Path(request["device_lock"]) if request.get("device_lock") else None)
    deadline = time.monotonic() + float(request["budget_s"])
    apply_flags(request["flags"])
    kernels = open_kernels(Path(request["cache_dir"]), Path(request["native_dir"]))
    if isinstance(kernels, CacheUnavailable):
        return str(kernels)
    gain: dict[str, float] = {}
    for key in keys_of(request):
        found = kernels.find(key)
        if not isinstance(found, Hit):
            return f"a kernel is gone: {found.reason}"
        gain[key.digest] = _gain(found.record.task, lower_bound(found.record) or 1.0)
    graph, seed = Task.from_json(request["graph"]), int(request["seed"])
    names = request["origins"]
    recorded = Path(request["inputs"]) if request.get("inputs") else None
    inductor, still = dict(request["inductor"]), request["still"]
    of_layouts = not gain and still is None
    if request["eager_layouts"] and not of_layouts:
        inductor.update(EAGERS)
    with in_turns(lock):
        trial = Trial(graph, inductor, seed, lock, recorded, still, names)
        if not gain and time.monotonic() > deadline + lock.waited_s:
            return Acceptance((), "the budget ended before the graph was measured", False)
        if of_layouts:
            say("the whole graph with eager's layouts")
            return decide_layouts(trial.measure_layouts())
        replayed = _measure_replay(trial, say) if still is not None else None
        decided = _decide(gain, trial, deadline, say) if gain else Acceptance(())
        return replace(
            decided,
            eager_layouts=bool(request["eager_layouts"]),
            replay=trial.replays,
            replayed=replayed,
        )


def _measure_replay(trial: Trial, say: Callable[[str], None]) -> Measured:
    """What cannot be replayed can still have kernels."""
    say("the whole graph, replayed")
    try:
        return trial.measure_replay()
    except Exception as error:
        return Measured(0, 0, 0, False, f"it cannot be replayed: {type(error).__name__}: {error}")


def _decide(
    gain: Mapping[str, float], trial: Trial, deadline: float, say: Callable[[str], None]
) -> Acceptance:
    """`decide` on a trial, with the time that other processes' turns take left out. deadline: of `time.monotonic`."""
    lock = trial.lock
    cost = [0.0]

    def measure(chosen: Sequence[str]) -> Measured:
        say(f"the whole graph with {len(chosen)} kernels")
        started = time.monotonic() - lock.waited_s
        found = trial.measure(chosen)
        cost[0] = max(cost[0], time.monotonic() - lock.waited_s - started)
        return found

    def trials_left() -> int:
        return int((deadline + lock.waited_s - time.monotonic()) / max(cost[0], 1e-3))

    return decide(list(gain), gain, measure, trials_left)


def _gain(task: str, low: float) -> float:
    """What a kernel promises to save: the bytes its task moves, times the part of the time that it saves."""
    from sandbox.task.task import Task

    parsed = Task.from_json(task)
    moved = sum(spec.numel * spec.itemsize for spec in (*parsed.inputs, *parsed.output_specs))
    return moved * (1 - 1 / max(low, 1.0))


def main() -> int:
    """One request on standard input; progress and the result as JSON lines on what was standard output.

    `AHEAD`: what is `NEEDED` is imported before the request is read, which may never come.
    """
    from cuda_agent_backend.runtime.child_process import own_stdout

    out = own_stdout()
    for name in NEEDED if AHEAD in sys.argv[1:] else ():
        importlib.import_module(name)
    line = sys.stdin.readline()
    if not line:
        return 0
    request = json.loads(line)
    emit = functools.partial(_emit, out)
    try:
        found = run(request, lambda text: emit({"event": "progress", "text": text}))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    emit(
        {"event": "failed", "reason": found}
        if isinstance(found, str)
        else {"event": "result", **replace(found).to_json()}
    )
    return 0


def _emit(out: Any, value: Mapping[str, Any]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
