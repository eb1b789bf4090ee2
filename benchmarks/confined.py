"""Work on things that are not trusted, side by side, each in a process of its own that is confined like a worker.

A process is forked from this one, which has torch imported and has not woken the device. It reads no files but
Python's and those of its folder and reaches no network. What it does costs its own answer only.
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.verdict import OUT_OF_MEMORY
from sandbox.workers import fork_server
from sandbox.workers.confined_process import ConfinedProcess, Wanted, write_all
from sandbox.workers.worker import run_and_exit

Facts = dict[str, Any]
Work = Callable[[Any, Path], Facts]
"""From an item and a folder to write in to JSON values."""
BYTES = 8 << 30
"""Of memory, on cpu."""
POLL_S, REAP_S = 0.5, 0.02
LEAVING = 8
"""So many processes besides those that work may be on their way out: each still holds memory of the device."""
IN_EACH = ("torch._inductor.codecache",)
"""What every process would import for itself, for `keep_headers`."""
IF_THERE = ("transformers", "transformers.modeling_utils")
"""What every process of a task with a library's layers would import for itself, which takes seconds."""
NOT_DONE, NO_ANSWER = "not done after", "its process ended without an answer"
NO_MEMORY = re.compile(
    rf"{OUT_OF_MEMORY.pattern}|MemoryError|can't allocate memory"
    r"|CU\w+_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|CUFFT_ALLOC_FAILED"
)
"""A library of the device that finds no memory for its own work says that it is not initialized."""


@dataclass
class _Running:
    name: str
    process: ConfinedProcess
    answers: int
    ends: float
    held: bytes = b""


def preload(
    modules: Iterable[str], target: str, prepare: Callable[[], object] | None = None
) -> None:
    """Import what all processes need, before they are forked.

    prepare: is called here too, unless it wakes the device, which a forked process finds out first. Raises ImportError,
    and RuntimeError where the device is awake: no process that is forked from here could use it.
    """
    fork_server.preload((*modules, *IN_EACH), if_there=IF_THERE)
    if prepare is not None:
        os.environ[fork_server.ASK_NVML] = "1"
        if target != "cuda" or not wakes_device(prepare):
            prepare()
        del os.environ[fork_server.ASK_NVML]
        gc.collect()
        gc.freeze()
    if target == "cuda" and fork_server.cuda_is_initialized():
        raise RuntimeError("an import woke CUDA's driver: no process forked from here could use it")


def wakes_device(prepare: Callable[[], object]) -> bool:
    """Whether a process that is forked from here and does this wakes CUDA's driver, or fails."""
    outer = os.fork()
    if not outer:

        def tried() -> None:
            prepare()
            if fork_server.cuda_is_initialized():
                raise RuntimeError("it woke the device")

        run_and_exit(tried)
    return os.waitpid(outer, 0)[1] != 0


def lacks_memory(facts: Mapping[str, Any]) -> bool:
    """Whether an item failed, or was looked at another way, for want of memory that others may have had."""
    return bool(NO_MEMORY.search(f"{facts.get('failed', '')} {facts.get('why_moved', '')}"))


def is_passing(facts: Mapping[str, Any]) -> bool:
    """Whether the machine may be why an item failed, and not the item: it found no memory, was not done in time, or its
    process ended without an answer. Such an item is asked again."""
    why = facts.get("failed", "")
    return lacks_memory(facts) or why.startswith(NOT_DONE) or why == NO_ANSWER


def each(
    items: Iterable[tuple[str, Any]],
    work: Work,
    *,
    jobs: int,
    target: str,
    limit_s: float,
    read: Sequence[Path] = (),
) -> Iterator[tuple[str, Facts]]:
    """Names and facts, in the order in which they come. Of an item without an answer: ``failed``, with the reason.

    limit_s: seconds for one item. read: folders that it may read besides. A process whose item is answered is let go at
    once, and nobody waits until the driver is done with it: up to `LEAVING` more than ``jobs`` are there meanwhile.
    """
    for module in IN_EACH:
        __import__(module)
    wanted = Wanted("confined", target, 1, BYTES, read)
    waiting = iter(items)
    running: list[_Running] = []
    leaving: list[ConfinedProcess] = []
    try:
        while True:
            leaving = [process for process in leaving if not process.ended()]
            free = min(jobs, jobs + LEAVING - len(leaving)) - len(running)
            for _ in range(free):
                if (item := next(waiting, None)) is not None:
                    kept = [one.answers for one in running]
                    running.append(_started(item, work, wanted, limit_s, kept))
            if not running and not leaving:
                return
            poll_s = REAP_S if leaving else POLL_S
            ready, _, _ = select.select([one.answers for one in running], [], [], poll_s)
            for one in list(running):
                facts = _answer(one) if one.answers in ready else None
                if facts is None and time.monotonic() > one.ends:
                    facts = {"failed": f"{NOT_DONE} {limit_s:.0f} s"}
                if facts is not None:
                    running.remove(one)
                    leaving.append(_let_go(one))
                    yield one.name, facts
    finally:
        for process in (*leaving, *map(_let_go, running)):
            process.end()


def _started(
    item: tuple[str, Any], work: Work, wanted: Wanted, limit_s: float, kept: Sequence[int]
) -> _Running:
    """kept: descriptors that it does not get, besides its own other end."""
    name, value = item
    answers, theirs = os.pipe()
    process = ConfinedProcess(
        wanted,
        lambda folder: _work(value, work, folder, theirs),
        given=(theirs,),
        kept=(answers, *kept),
    )
    return _Running(name, process, answers, time.monotonic() + limit_s)


def _work(value: Any, work: Work, folder: Path, answers: int) -> None:
    try:
        facts = work(value, folder)
    except Exception as error:  # of the task's code: a fact about it
        first = str(error).strip().partition("\n")[0][:300]
        facts = {"failed": f"{type(error).__name__}: {first}"}
    facts = {**facts, "cpu_s": round(sum(os.times()[:4]), 2)}
    write_all(answers, json.dumps(facts).encode() + b"\n")


def _answer(one: _Running) -> Facts | None:
    """The facts; None where more is to come."""
    part = os.read(one.answers, 1 << 20)
    one.held += part
    if part and not one.held.endswith(b"\n"):
        return None
    try:
        found = json.loads(one.held)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"failed": NO_ANSWER}


def _let_go(one: _Running) -> ConfinedProcess:
    os.close(one.answers)
    one.process.let_go()
    return one.process
