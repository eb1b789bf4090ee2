"""The process that measures a whole graph: `python -m cuda_agent_backend.acceptance.process`.

It reads one JSON request on standard input and writes JSON lines on standard output: progress and what it waits for
others (see `waits`), then the result. It compiles the graph with and without kernels and runs both in turn, so whatever
happens there is a value for its parent.
The decision itself is in `rule`, the measurement in `trial`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent_backend.acceptance.rule import Acceptance, Measurement, decide, decide_layouts
from sandbox.failures import why_passing
from sandbox.memory.notes import Notes, merged, noted

if TYPE_CHECKING:
    from cuda_agent_backend.acceptance.trial import Trial
    from cuda_agent_backend.runtime.kernels import Kernels
    from sandbox.memory.device import DeviceMemory
    from sandbox.stopwatch import Stopwatch
    from sandbox.task.task import Task
    from sandbox.timing.device_lock import DeviceLock

AHEAD = "ahead"
"""The argument of a process that is started before there is a request."""
NEEDED = (
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "cuda_agent_backend.acceptance.trial",
    "cuda_agent_backend.runtime.kernels",
)
"""Takes long to import."""

Say = Callable[[str], None]
Note = Callable[[Notes], None]


def main() -> int:
    """Carry out one request; progress and the result go to what was standard output.

    `AHEAD`: what is `NEEDED` is imported before the request is read, which may never come.
    """
    from cuda_agent_backend.acceptance.waits import telling
    from cuda_agent_backend.runtime.child_process import own_stdout

    out = own_stdout()
    for name in NEEDED if AHEAD in sys.argv[1:] else ():
        importlib.import_module(name)
    line = sys.stdin.readline()
    if not line:
        return 0
    request = json.loads(line)
    headers = use_own_temporary_folder()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    emit, memory = functools.partial(_emit, out), list[Notes]()
    try:
        waiting = telling(emit)
        say = lambda text: emit({"event": "progress", "text": text})  # noqa: E731
        found = run(request, say, waiting, lambda notes: memory.append(notes))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if isinstance(found, str):
        emit({"event": "failed", "reason": found})
    else:
        _leave_headers(headers)
        emit({"event": "result", **found.to_json(), "memory": merged(memory)})
    return 0


def _leave_headers(shared: Path) -> None:
    """Let the user's Inductor, which compiles the graph next, find a header that this process had to make."""
    from sandbox.workers.inductor_store import leave_headers, own_headers

    with contextlib.suppress(OSError):
        leave_headers(own_headers(), shared)


def _end_with_parent() -> None:
    """End as soon as nobody listens any more: the parent keeps standard input open, and says nothing more."""
    from sandbox import scratch

    while sys.stdin.readline():
        pass
    scratch.leave_and_exit(1)


def use_own_temporary_folder() -> Path:
    """Let compilers, which may be killed over their work, leave nothing but in a folder of this process's own.

    Inductor's cache, which by default is among the temporary files, stays where it is. Returns where its headers are
    for this user, which this process finds in its own folder too.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    from sandbox import scratch
    from sandbox.workers.fork_server import keep_headers
    from sandbox.workers.inductor_store import lend_headers, own_headers

    shared = Path(default_cache_dir())
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(shared))
    headers = own_headers()
    with contextlib.suppress(OSError):
        tempfile.tempdir = os.environ["TMPDIR"] = str(scratch.make("compiling"))
        keep_headers()
        lend_headers(headers, own_headers())
    return headers


def _emit(out: Any, value: Mapping[str, Any]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


def run(
    request: Mapping[str, Any],
    say: Say,
    waiting: Stopwatch | None = None,
    note: Note = lambda notes: None,
) -> Acceptance | str:
    """Measure a graph and decide; a text says why that could not be. waiting: runs while it waits for others. note: is
    told what the lease on the device's memory came to.

    The request: {"graph": a task's JSON, "kernels": fields of their keys, "cache_dir", "native_dir", "inductor": its
    options, "until": on the monotonic clock, "flags", "seed", "device_lock", "inputs": a folder of real ones or none,
    "eager_layouts", "static_inputs": which inputs are parameters, or null where the graph is not to be replayed,
    "origins": of its operators}.
    Without kernels it is replay, or else eager's layouts, that is measured.
    """
    from cuda_agent_backend.acceptance.trial import Trial
    from cuda_agent_backend.graph.layouts import EAGERS
    from cuda_agent_backend.runtime.inductor_timing import in_turns
    from cuda_agent_backend.runtime.kernels import open_kernels
    from cuda_agent_backend.runtime.machine import apply_flags
    from kernel_cache import CacheUnavailable
    from sandbox.memory.footprint import FRUGAL_BYTES
    from sandbox.stopwatch import Stopwatch
    from sandbox.task.task import Task
    from sandbox.timing.device_lock import DeviceLock

    place = Path(request["device_lock"]) if request.get("device_lock") else None
    lock = DeviceLock(place, waiting or Stopwatch())
    deadline = float(request["until"])
    apply_flags(request["flags"])
    kernels = open_kernels(Path(request["cache_dir"]), Path(request["native_dir"]))
    if isinstance(kernels, CacheUnavailable):
        return str(kernels)
    promises = _promises(request, kernels)
    if isinstance(promises, str):
        return promises
    graph, static_inputs = Task.from_json(request["graph"]), request["static_inputs"]
    recorded = Path(request["inputs"]) if request.get("inputs") else None
    inductor = dict(request["inductor"])
    of_layouts = not promises and static_inputs is None
    if request["eager_layouts"] and not of_layouts:
        inductor.update(EAGERS)
    frugal_at = FRUGAL_BYTES if graph.target == "cuda" else None

    def measure() -> Acceptance:
        with in_turns(lock):
            seed, origins = int(request["seed"]), request["origins"]
            trial = Trial(graph, inductor, seed, lock, recorded, static_inputs, origins, frugal_at)
            if not promises and time.monotonic() > deadline + lock.waited_s:
                return Acceptance((), "the budget ended before the graph was measured", False)
            if of_layouts:
                say("the whole graph with eager's layouts")
                return decide_layouts(trial.measure_layouts())
            replayed = _measure_replay(trial, say) if static_inputs is not None else None
            decided = _decide(promises, trial, deadline, say) if promises else Acceptance(())
            layouts = bool(request["eager_layouts"])
            return replace(decided, eager_layouts=layouts, replay=trial.replays, replayed=replayed)

    return with_memory(graph, lock, deadline, measure, note=note)


def with_memory(
    graph: Task,
    lock: DeviceLock,
    until: float,
    measure: Callable[[], Acceptance],
    memory: DeviceMemory | None = None,
    note: Note = lambda notes: None,
) -> Acceptance | str:
    """Measure with a lease on the device's memory, and where that runs out, once more while no other process has one.

    until: on the monotonic clock. What is waited for the lease counts among what is waited for the lock's turns. A text
    says that there are not enough bytes, which may pass. memory: of the device, by default the GPU's for a graph on
    cuda. note: is told what each lease came to. Raises what `measure` raises, a lack of memory the second time.
    """
    import torch

    from cuda_agent_backend.runtime.child_process import WAITING_S
    from sandbox.accuracy.sliced_oracle import SlicedOracle
    from sandbox.graph.build import build_graph
    from sandbox.memory.device import CudaMemory
    from sandbox.memory.footprint import FRUGAL_BYTES, bytes_of, footprint, slice_bytes
    from sandbox.memory.leases import Leases
    from sandbox.timing.machine import peak_bytes, release_memory
    from sandbox.verdict import OUT_OF_MEMORY

    if memory is None and graph.target != "cuda":
        return measure()
    device = memory or CudaMemory()
    leases = Leases(lock.path, device, in_turn=lambda: lock.in_turn, waiting=lock.waiting)
    moved, module = bytes_of(graph.inputs) + bytes_of(graph.output_specs), build_graph(graph)
    frugal = moved >= FRUGAL_BYTES
    sliced = SlicedOracle(module, slice_bytes(moved)) if frugal else None
    told = footprint(graph, module, sliced, frugal)

    def go_on() -> bool:
        return time.monotonic() < until + WAITING_S

    def measure_with(needed: int | None) -> Acceptance | str:
        with leases.lease(needed, "acceptance", go_on) as refused:
            if refused is not None:
                return refused.reason
            peak_bytes(graph.target)  # what is counted begins here
            try:
                return measure()
            finally:
                peak = peak_bytes(graph.target) if graph.target == "cuda" else None
                note(noted("acceptance", needed, told.allowed, peak))

    try:
        return measure_with(told.of("acceptance"))
    except RuntimeError as error:  # a kernel's operator says it in words, where torch has a type
        if not (isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error))):
            raise
        print(f"once more without other leases: {error}", file=sys.stderr)
    gc.collect()  # of the trial that failed
    release_memory(graph.target)
    return measure_with(None)


def _promises(request: Mapping[str, Any], kernels: Kernels) -> dict[str, float] | str:
    """Load the kernels of a request; what each promises to save, by key digest, or why one cannot be used."""
    from cuda_agent_backend.acceptance.whole_graph import keys_of
    from cuda_agent_backend.runtime.kernels import Hit, lower_bound

    promises: dict[str, float] = {}
    for key in keys_of(request):
        found = kernels.find(key)
        if not isinstance(found, Hit):
            return f"a kernel is gone: {found.reason}"
        promises[key.digest] = _promise(found.record.task, lower_bound(found.record) or 1.0)
    return promises


def _promise(task: str, low: float) -> float:
    """The bytes that a kernel's task moves, times the part of the time that the kernel saves."""
    from sandbox.task.task import Task

    parsed = Task.from_json(task)
    moved = sum(spec.numel * spec.itemsize for spec in (*parsed.inputs, *parsed.output_specs))
    return moved * (1 - 1 / max(low, 1.0))


def _measure_replay(trial: Trial, say: Say) -> Measurement:
    """What cannot be replayed can still have kernels. Raises what may pass, which decides nothing."""
    say("the whole graph, replayed")
    try:
        return trial.measure_replay()
    except Exception as error:
        if why_passing(error):
            raise
        return Measurement.failed(f"it cannot be replayed: {type(error).__name__}: {error}")


def _decide(promises: Mapping[str, float], trial: Trial, deadline: float, say: Say) -> Acceptance:
    """`decide` on a trial, with the time that other processes' turns take left out. deadline: of `time.monotonic`."""
    lock = trial.lock
    cost = [0.0]

    def measure(chosen: Sequence[str]) -> Measurement:
        say(f"the whole graph with {len(chosen)} kernels")
        started = time.monotonic() - lock.waited_s
        found = trial.measure(chosen)
        cost[0] = max(cost[0], time.monotonic() - lock.waited_s - started)
        return found

    def trials_left() -> int:
        return int((deadline + lock.waited_s - time.monotonic()) / max(cost[0], 1e-3))

    return decide(list(promises), promises, measure, trials_left)


if __name__ == "__main__":
    sys.exit(main())
