"""Work on things that are not trusted, side by side, each in a process of its own that is confined like a worker.

A process is forked from this one, which has torch imported and has not woken the device. It reads no files but
Python's and those of its folder and reaches no network. What it does costs its own answer only.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from sandbox import scratch
from sandbox.isolation import privileges, trees
from sandbox.workers.fork_server import ASK_NVML, become_confined
from sandbox.workers.settings import WorkerSettings, isolation_policy
from sandbox.workers.worker import watch

Facts = dict[str, Any]
Work = Callable[[Any, Path], Facts]
"""From an item and a folder to write in to JSON values."""
BYTES = 8 << 30
"""Of memory, on cpu."""
POLL_S = 0.5
IN_EACH = ("torch._inductor.codecache",)
"""What every process would import for itself, for `keep_headers`."""


@dataclass
class _Running:
    name: str
    pid: int
    life: int
    answers: int
    folder: Path
    uid: int | None
    ends: float
    held: bytes = b""


def preload(modules: Iterable[str]) -> None:
    """Import what all processes need, before they are forked. Raises ImportError."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ[ASK_NVML] = "1"  # importing torch must not wake the device
    for name in (*modules, *IN_EACH):
        __import__(name)
    with contextlib.suppress(ImportError):
        __import__("transformers")
    del os.environ[ASK_NVML]
    gc.collect()
    gc.freeze()


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

    limit_s: seconds for one item. read: folders that it may read besides.
    """
    for module in IN_EACH:
        __import__(module)
    waiting = iter(items)
    running: list[_Running] = []
    try:
        while True:
            while len(running) < jobs and (item := next(waiting, None)) is not None:
                running.append(_started(item, work, target, limit_s, read, running))
            if not running:
                return
            ready, _, _ = select.select([one.answers for one in running], [], [], POLL_S)
            for one in list(running):
                facts = _answer(one) if one.answers in ready else None
                if facts is None and time.monotonic() > one.ends:
                    facts = {"failed": f"not done after {limit_s:.0f} s"}
                if facts is not None:
                    running.remove(one)
                    _end(one)
                    yield one.name, facts
    finally:
        for one in running:
            _end(one)


def _started(
    item: tuple[str, Any],
    work: Work,
    target: str,
    limit_s: float,
    read: Sequence[Path],
    others: Sequence[_Running],
) -> _Running:
    """others: those that run. A process that kept their pipes open would keep them from being ended."""
    name, value = item
    folder = scratch.make("confined")
    folder.chmod(0o755)
    uid = privileges.next_uid()
    privileges.hold(uid)
    memory = BYTES if target == "cpu" else None
    hello = {"target": target, "native": ""}
    settings = WorkerSettings("confined", folder, 1, hello, memory_bytes=memory)
    settings.scratch.mkdir()
    settings.inbox.mkdir()
    policy = isolation_policy(settings, uid)
    if policy.view is not None:
        seen = (*policy.view.read, *map(str, read))
        policy = replace(policy, view=replace(policy.view, read=seen))
    their_life, life = os.pipe()
    answers, their_answers = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (life, answers, *(d for one in others for d in (one.life, one.answers))):
            os.close(descriptor)
        inner = os.fork()
        if inner:
            os.close(their_answers)
            watch(inner, their_life, os.open(os.devnull, os.O_WRONLY))
        os.close(their_life)
        _work(value, work, settings, policy, their_answers)
    os.close(their_life)
    os.close(their_answers)
    return _Running(name, pid, life, answers, folder, uid, time.monotonic() + limit_s)


def _work(value: Any, work: Work, settings: WorkerSettings, policy: Any, answers: int) -> NoReturn:
    try:
        become_confined(settings.scratch, policy)
        import torch

        torch.set_num_threads(settings.threads)
        try:
            facts = work(value, settings.scratch)
        except Exception as error:  # of the task's code: a fact about it
            first = str(error).strip().partition("\n")[0][:300]
            facts = {"failed": f"{type(error).__name__}: {first}"}
        text = json.dumps({**facts, "cpu_s": round(sum(os.times()[:4]), 2)}).encode() + b"\n"
        while text:
            text = text[os.write(answers, text) :]
    finally:
        os._exit(0)


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
    return found if isinstance(found, dict) else {"failed": "its process ended without an answer"}


def _end(one: _Running) -> None:
    os.close(one.life)  # its watcher ends whatever is left
    os.waitpid(one.pid, 0)
    os.close(one.answers)
    privileges.release(one.uid)
    trees.remove(one.folder)
