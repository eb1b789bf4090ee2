"""What a child process does: ``python -m cuda_agent_backend.bench.child PHASE REQUEST``. It writes one JSON file.

What the task's own code raises is an answer, {"failed": reason}, with the traceback in the log; what ends the process
is noticed by the parent. When the parent is gone, which standard input tells, this process ends with its group.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.request import Request

Answer = dict[str, Any]
MODEL_LIMIT_S = 300.0
"""What building a task, and calling it once, may take."""


def machine(request: Request) -> Answer:
    """What machine this is, its ceilings, and the operators built, so that no search waits for that."""
    from cuda_agent_backend.machine import arch_of
    from sandbox.devicelock import DeviceLock
    from sandbox.launcher.native import find_or_build
    from sandbox.machine import ceilings, facts

    target, dtype = request.wishes.target, request.wishes.dtype
    find_or_build(Path(request.native_dir))
    with DeviceLock(Path(request.device_lock)).turn():
        measured = ceilings(target, dtype)
    return {"facts": facts(), "arch": arch_of(target), "ceilings": measured.to_dict()}


def search(request: Request) -> Answer:
    """Search kernels for a task, as search mode does for a user's model."""
    from cuda_agent_backend.warm import warm
    from sandbox.devicelock import DeviceLock

    with limited(MODEL_LIMIT_S, request):
        task = _built(request)
        if isinstance(task, str):
            return {"failed": task}
        inputs = task.draw(request.wishes.seed)
    # Once on its own first: whatever hangs in a turn keeps all others from theirs.
    with DeviceLock(Path(request.device_lock)).turn(), limited(MODEL_LIMIT_S, request):
        _call(task.model, inputs)
    options = {**request.options("search"), "cuda_agent.device_lock": request.device_lock}
    report = warm(task.model, inputs, budget_s=request.wishes.budget_s, options=options)
    return {"failed": report.problem} if report.problem else report.to_json()


def measure(request: Request) -> Answer:
    """Measure a task with what the search found."""
    from cuda_agent_backend.bench.measuring import measure as measured

    task = _built(request)
    return {"failed": task} if isinstance(task, str) else measured(task, request)


def _built(request: Request) -> Any:
    """The task, or why there is none."""
    import torch

    from cuda_agent_backend.bench.taskfile import Place, build
    from cuda_agent_backend.loading import BadTarget

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
    from cuda_agent_backend import tables

    def end() -> None:
        reason = f"the task's own code was not done after {seconds:.0f} s"
        tables.write_json(Path(request.result), {"timed_out": reason})
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


PHASES: dict[str, Callable[[Request], Answer]] = {
    "machine": machine,
    "search": search,
    "measure": measure,
}


def main(phase: str, request: Request) -> None:
    """Carry one phase out and write its answer."""
    from cuda_agent_backend import log, tables
    from cuda_agent_backend.settings import Settings

    log.configure(Settings.from_environment().logs)
    try:
        answer = PHASES[phase](request)
    except Exception as error:
        traceback.print_exc()
        first = str(error).strip().partition("\n")[0]
        answer = {"failed": f"{type(error).__name__}: {first}"}
    tables.write_json(Path(request.result), answer)


def end_with_parent() -> None:
    """Wait for the end of standard input, and then end this process's group."""
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    main(sys.argv[1], Request.from_text(Path(sys.argv[2]).read_text(encoding="utf-8")))
