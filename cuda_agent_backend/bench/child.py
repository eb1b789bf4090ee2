"""What a child process does: ``python -m cuda_agent_backend.bench.child PHASE REQUEST DONE``. It writes one JSON file.

What the task's own code raises is an answer, {"failed": reason}, with the traceback in the log; what ends the process
is noticed by the parent. When the parent is gone, which standard input tells, this process ends with its group.

A task that leaves torch as it found it may be followed by another: a byte goes to the descriptor DONE, and the next
request's path is read from standard input. So is the first one where REQUEST is "-": what takes long to import is
imported then while nobody waits for it. A request without a result has what it asks for made ready, and no more.
"""

from __future__ import annotations

import gc
import importlib
import os
import queue
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.memory import PhaseMemory
from cuda_agent_backend.bench.request import FLOAT32, LATER, Request
from sandbox.task import flags
from sandbox.timing.machine import Ceilings

Answer = dict[str, Any]
READY = ("torch._inductor.compile_fx", "cuda_agent_backend.tools.warm")
KEPT_BYTES = 1 << 30
"""What is left of a task on the device, such as libraries' workspaces, before another takes its process."""
MODEL_LIMIT_S = 300.0
"""What building a task, and calling it once, may take."""
SOONER_S = 1.0
"""So long before its phase would be ended, a task's own code that still runs is said to hang."""
_ending = threading.Lock()
"""Held by whoever writes an answer: the first one that ends this process has the last word."""


def machine(request: Request) -> Answer:
    """What machine this is, its ceilings, and the operators built, so that no search waits for that."""
    from cuda_agent_backend.runtime.clocks import least_call
    from cuda_agent_backend.runtime.machine import arch_of
    from sandbox.launcher.native import find_or_build
    from sandbox.timing.device_lock import DeviceLock
    from sandbox.timing.machine import ceilings, facts

    target, dtype = request.wishes.target, request.wishes.dtype
    find_or_build(Path(request.native_dir))
    lock = Path(request.device_lock) if request.device_lock else default_lock(target)
    with DeviceLock(lock).turn():
        measured = ceilings(target, dtype)
        if target == "cuda" and dtype == "float32":
            with flags.applied(FLOAT32["tf32"]):
                fast = ceilings(target, dtype)
            measured = replace(measured, flops_per_s=_product_rate(request, measured, fast))
        found = {**measured.to_dict(), "call_s": least_call(target)}
    return {
        "facts": facts(),
        "arch": arch_of(target),
        "ceilings": found,
        "free": free_bytes(target),
        "device_lock": str(lock.absolute()),
    }


def free_bytes(target: str) -> int | None:
    """Of the device, beside what others hold, this process's own context with it; None on cpu."""
    import torch

    return int(torch.cuda.mem_get_info(0)[0]) if target == "cuda" else None


def default_lock(target: str) -> Path:
    """One per user and device, whatever folder a run works in and by whatever number it has the device."""
    import torch

    name = str(torch.cuda.get_device_properties(0).uuid) if target == "cuda" else "cpu"
    return Path(tempfile.gettempdir()) / f"cuda_agent-{os.getuid()}-{name}.lock"


def _product_rate(request: Request, usual: Ceilings, fast: Ceilings) -> float:
    """Operations a second that products of float32 can reach: six in bfloat16, each at twice TF32's rate, make one."""
    if request.wishes.float32 != "ieee":
        return fast.flops_per_s
    return max(usual.flops_per_s, fast.flops_per_s / 3)


def size(request: Request) -> Answer:
    """Bytes of a task, from tensors without memory, on the host alone."""
    from cuda_agent_backend.bench.sizes import held_by
    from cuda_agent_backend.tools.load_model import BadTarget, import_file

    with limited(MODEL_LIMIT_S, request):
        module = import_file(Path(request.file))
        return (
            {"failed": module.reason} if isinstance(module, BadTarget) else asdict(held_by(module))
        )


def search(request: Request) -> Answer:
    """Search kernels for a task, as search mode does for a user's model."""
    from cuda_agent_backend.search.client import search_process
    from cuda_agent_backend.tools.warm import warm
    from sandbox.timing.device_lock import DeviceLock

    search_process().take_notes()  # of the task before
    getting_ready = threading.Thread(target=start_search, args=(request,), daemon=True)
    getting_ready.start()
    with limited(MODEL_LIMIT_S, request):
        task = _built(request)
        if isinstance(task, str):
            return {"failed": task}
    # Once on its own first: whatever hangs in a turn keeps all others from theirs.
    with DeviceLock(Path(request.device_lock)).shared(), limited(MODEL_LIMIT_S, request):
        inputs = task.draw(request.wishes.seed)
        _call(task.model, inputs)
    getting_ready.join()
    report = warm(
        task.model, inputs, budget_s=request.wishes.budget_s, options=_search_options(request)
    )
    return {"failed": report.problem} if report.problem else report.to_json()


def start_search(request: Request) -> None:
    """Have the search process up, and a judge that can be asked, so that no task's budget pays for that."""
    from cuda_agent_backend.search.client import SearchClient
    from cuda_agent_backend.tools.warm import options_from

    SearchClient(options_from(None, _search_options(request))).prepare(request.wishes.target)


def _search_options(request: Request) -> dict[str, Any]:
    return {**request.options("search"), "cuda_agent.device_lock": request.device_lock}


def measure(request: Request) -> Answer:
    """Measure a task with what the search found."""
    from cuda_agent_backend.bench.measurement import measure as measured

    task = _built(request)
    return {"failed": task} if isinstance(task, str) else measured(task, request)


def _built(request: Request) -> Any:
    """The task, or why there is none."""
    import torch

    from cuda_agent_backend.bench.built_task import Place, build
    from cuda_agent_backend.tools.load_model import BadTarget

    wishes = request.wishes
    place = Place(wishes.target, getattr(torch, wishes.dtype))
    found = build(Path(request.file), place, wishes.seed)
    return found.reason if isinstance(found, BadTarget) else found


def _call(model: Any, inputs: tuple[Any, ...]) -> None:
    import torch

    with torch.no_grad():
        model(*inputs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def limited(seconds: float, request: Request) -> Iterator[None]:
    """End this process, with an answer, where what is done within takes longer."""
    most = own_limit(seconds, request.answer_by, time.monotonic())
    reason = f"the task's own code was not done after {most:.0f} s"
    with answered_after(most, request, lambda: {"timed_out": reason}):
        yield


def own_limit(seconds: float, answer_by: float, now: float) -> float:
    """What a task's own code may take: no longer than its phase, or what hangs would be taken for a phase that had too
    little time, and hang once more while it is measured. Where none of that is left, waiting took it."""
    left = answer_by - now - SOONER_S
    return min(seconds, left) if answer_by and left > 0 else seconds


@contextmanager
def ended_in_time(request: Request, memory: PhaseMemory) -> Iterator[None]:
    """End this process before its parent would kill it, with what is known of it by then."""

    def known() -> Answer:
        from cuda_agent_backend.search.client import search_process

        held = {"memory": memory.facts(), "leases": search_process().notes}
        return {"out_of_time": "not done at the limit of its phase", **held}

    if not request.answer_by:
        yield
        return
    with answered_after(max(request.answer_by - time.monotonic(), 0.0), request, known):
        yield


@contextmanager
def answered_after(
    seconds: float, request: Request, answer: Callable[[], Answer]
) -> Iterator[None]:
    """End this process, and its search, with an answer, unless what is done within takes fewer seconds."""
    from cuda_agent_backend.json_values import write_json

    def end() -> None:
        if not _ending.acquire(blocking=False):
            return
        try:
            write_json(Path(request.result), answer())
            end_search()
        finally:
            os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_search() -> None:
    """End the search process, if there is one: it has a group of its own, and would be at work beside what comes
    next."""
    # Nothing is imported here: the task's own code may hang within an import.
    client = sys.modules.get("cuda_agent_backend.search.client")
    if client is not None:
        client.search_process().kill()


PHASES: dict[str, Callable[[Request], Answer]] = {
    "machine": machine,
    "size": size,
    "search": search,
    "measure": measure,
}


def main(phase: str, request: Request) -> None:
    """Carry one phase out and write its answer."""
    from cuda_agent_backend import log
    from cuda_agent_backend.json_values import write_json
    from cuda_agent_backend.settings import Settings

    log.configure(Settings.from_environment().logs)
    with PhaseMemory(request.wishes.target) as memory, ended_in_time(request, memory):
        try:
            answer = PHASES[phase](request)
        except Exception as error:
            traceback.print_exc()
            first = str(error).strip().partition("\n")[0]
            answer = {"failed": f"{type(error).__name__}: {first}"}
    with _ending:
        write_json(Path(request.result), {**answer, "memory": memory.facts()})


def make_ready(phase: str) -> None:
    """Import what a phase needs, and have the search process do so: all that needs no device, which others may time."""
    for module in READY:
        importlib.import_module(module)
    if phase == "search":
        from cuda_agent_backend.search.client import search_process

        search_process().tell({"do": "leave"})  # there is nothing to leave: it only starts


def serve(phase: str, first: Path | None, done: int, requests: queue.SimpleQueue[Path]) -> None:
    """Carry out requests until one fails or changes this process. first: None if it comes with the others."""
    if first is None:
        make_ready(phase)
        request = _next(requests)
    else:
        request = _read(first)
    while True:
        flags.apply(FLOAT32[request.wishes.float32])
        before, places, modules = _global_state(), list(sys.path), set(sys.modules)
        main(phase, request)
        if _global_state() != before or not _forget():
            return
        sys.path[:] = places
        _forget_modules(modules, Path(request.file).resolve().parent)
        os.write(done, b".")
        request = _next(requests)


def _next(requests: queue.SimpleQueue[Path]) -> Request:
    while not (request := _read(requests.get())).result:
        flags.apply(FLOAT32[request.wishes.float32])
        start_search(request)
    _log_to(Path(request.result).with_suffix(".log"))
    return request


def _read(path: Path) -> Request:
    return Request.from_text(path.read_text(encoding="utf-8"))


def _global_state() -> tuple[Any, ...]:
    """What a task could change for those that follow it."""
    import torch
    from torch._dynamo import config as dynamo_config
    from torch._inductor import config as inductor_config

    from cuda_agent_backend.runtime.machine import all_flags

    return (
        all_flags(),
        (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()),
        (inductor_config.get_hash(), dynamo_config.get_hash()),
        Path.cwd(),
    )


def _forget_modules(known: Collection[str], folder: Path) -> None:
    """Another task may have a module of the same name in its own folder."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name not in known and file and Path(file).resolve().is_relative_to(folder):
            del sys.modules[name]


def _forget() -> bool:
    """Give up what is left of a task; whether that worked."""
    import torch

    from cuda_agent_backend.codegen import bugs

    bugs.forget()
    torch._dynamo.reset()
    gc.collect()
    try:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            kept = torch.cuda.memory_allocated()
            if kept > KEPT_BYTES:
                print(f"this process ends, as {kept} bytes of the last task are left", flush=True)
            return kept <= KEPT_BYTES
    except RuntimeError:  # a fault of the task's own kernels ends with this process
        return False
    return True


def _log_to(path: Path) -> None:
    """Let what is printed go to another file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


def listen(requests: queue.SimpleQueue[Path]) -> None:
    """Read requests from standard input; at its end, end this process's group."""
    for line in sys.stdin:
        requests.put(Path(line.rstrip("\n")))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    asked: queue.SimpleQueue[Path] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(asked,), daemon=True).start()
    os.set_inheritable(int(sys.argv[3]), False)
    serve(sys.argv[1], None if sys.argv[2] == LATER else Path(sys.argv[2]), int(sys.argv[3]), asked)
