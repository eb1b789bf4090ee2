"""Work on things that are not trusted, side by side, in processes that are confined like a worker.

A process is forked from this one, which has torch imported and has not woken the device. It reads no files but
Python's and those of its folder and reaches no network. Each thing has a process of its own, and what it does costs its
own answer only. A caller may let several share one (`in_one`), for things that leave torch as they found it: one that
ends the process still costs its own answer only, and those behind it begin anew.
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.verdict import OUT_OF_MEMORY
from sandbox.workers import fork_server
from sandbox.workers.confined_process import ConfinedProcess, Wanted, write_all
from sandbox.workers.worker import run_and_exit

Facts = dict[str, Any]
Item = tuple[str, Any]
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
    """items: those without an answer, the one under way first. ends: of that one."""

    items: deque[Item]
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
    items: Iterable[Item],
    work: Work,
    *,
    jobs: int,
    target: str,
    limit_s: float,
    read: Sequence[Path] = (),
    in_one: int = 1,
) -> Iterator[tuple[str, Facts]]:
    """Names and facts, in the order in which they come. Of an item without an answer: ``failed``, with the reason.

    limit_s: seconds for one item. read: folders that it may read besides. in_one: so many items at most share a
    process, one after the other; waking a device takes as long as many an item does. A process whose items are answered
    is let go at once, and nobody waits until the driver is done with it: up to `LEAVING` more than ``jobs`` are there
    meanwhile.
    """
    for module in IN_EACH:
        __import__(module)
    wanted = Wanted("confined", target, 1, BYTES, read)
    waiting = deque(items)
    running: list[_Running] = []
    leaving: list[ConfinedProcess] = []
    try:
        while True:
            leaving = [process for process in leaving if not process.ended()]
            free = min(jobs, jobs + LEAVING - len(leaving)) - len(running)
            for _ in range(free if waiting else 0):
                kept = [one.answers for one in running]
                if mine := _taken(waiting, min(in_one, -(-len(waiting) // jobs))):
                    running.append(_started(mine, work, wanted, limit_s, kept))
            if not running and not leaving:
                return
            poll_s = REAP_S if leaving else POLL_S
            ready, _, _ = select.select([one.answers for one in running], [], [], poll_s)
            for one in list(running):
                found = _answers(one) if one.answers in ready else []
                if not found and time.monotonic() > one.ends:
                    found = [{"failed": f"{NOT_DONE} {limit_s:.0f} s"}]
                for facts in found:
                    yield one.items.popleft()[0], facts
                if found and (not one.items or _has_ended(found[-1])):
                    running.remove(one)
                    leaving.append(_let_go(one))
                    waiting.extendleft(reversed(one.items))
                elif found:
                    one.ends = time.monotonic() + limit_s
    finally:
        for process in (*leaving, *map(_let_go, running)):
            process.end()


def _taken(waiting: deque[Item], count: int) -> deque[Item]:
    return deque(waiting.popleft() for _ in range(min(count, len(waiting))))


def _started(
    items: deque[Item], work: Work, wanted: Wanted, limit_s: float, kept: Sequence[int]
) -> _Running:
    """kept: descriptors that it does not get, besides its own other end."""
    answers, theirs = os.pipe()
    values = [value for _, value in items]
    process = ConfinedProcess(
        wanted,
        lambda folder: _work(values, work, folder, theirs),
        given=(theirs,),
        kept=(answers, *kept),
    )
    return _Running(items, process, answers, time.monotonic() + limit_s)


def _work(values: Sequence[Any], work: Work, folder: Path, answers: int) -> None:
    """Write a line of facts for each. What one held is let go before the next begins."""
    before = 0.0
    for value in values:
        try:
            facts = work(value, folder)
        except Exception as error:  # of the task's code: a fact about it
            first = str(error).strip().partition("\n")[0][:300]
            facts = {"failed": f"{type(error).__name__}: {first}"}
        cpu_s = sum(os.times()[:4])
        facts = {**facts, "cpu_s": round(cpu_s - before, 2)}
        before = cpu_s
        write_all(answers, json.dumps(facts).encode() + b"\n")
        if len(values) > 1:
            gc.collect()


def _answers(one: _Running) -> list[Facts]:
    """Facts that have come whole. The last says `NO_ANSWER` where the process has ended, or wrote what no work does."""
    part = os.read(one.answers, 1 << 20)
    *lines, one.held = (one.held + part).split(b"\n")
    found = [_parsed(line) for line in lines[: len(one.items)]]
    if not part and len(found) < len(one.items):
        found.append({"failed": NO_ANSWER})
    return found


def _parsed(line: bytes) -> Facts:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"failed": NO_ANSWER}


def _has_ended(facts: Facts) -> bool:
    """Whether these are facts of a process that answers no more."""
    why = facts.get("failed", "")
    return why == NO_ANSWER or why.startswith(NOT_DONE)


def _let_go(one: _Running) -> ConfinedProcess:
    os.close(one.answers)
    one.process.let_go()
    return one.process
