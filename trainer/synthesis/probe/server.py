"""``python -m trainer.synthesis.probe.server LOCK``: JSON lines in, requests; JSON lines out, facts.

Torch is imported once. Each request gets a process of its own, forked and confined like the sandbox's workers before
it sees the task's code: no files but Python's and a folder of its own, no network, no other processes. It asks for the
device through a pipe, and this process takes the lock for it, so that a task can neither keep the device nor touch the
lock. Whatever such a process does, it costs that task only.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from sandbox.isolation import privileges
from sandbox.isolation.confine import Policy, apply
from sandbox.timing.device_lock import DeviceLock
from sandbox.workers.fork_server import ASK_NVML, keep_headers
from sandbox.workers.settings import WorkerSettings, isolation_policy
from sandbox.workers.worker import BYTECODE, places, watch
from trainer.synthesis.probe.request import ProbeRequest

TURN, DONE, GO = b"turn\n", b"done\n", b"go\n"
MOST_ANSWER = 4 << 20
"""Bytes of facts."""
TURN_LIMIT_S = 60.0
PRELOADED = (
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "torch._inductor.codegen.cpp",
    "trainer.synthesis.probe.work",
)


def main() -> None:
    """Entry point."""
    from cuda_agent_backend.runtime.child_process import own_stdout

    out = own_stdout()
    os.environ[ASK_NVML] = "1"
    for name in PRELOADED:
        __import__(name)
    with contextlib.suppress(ImportError):
        __import__("transformers")
    del os.environ[ASK_NVML]
    os.environ.pop(BYTECODE, None)
    gc.collect()
    gc.freeze()
    lock = DeviceLock(Path(sys.argv[1]))
    for line in sys.stdin:
        request = ProbeRequest.from_json(json.loads(line))
        print(json.dumps(_served(request, lock, out.fileno())), file=out, flush=True)


def _served(request: ProbeRequest, lock: DeviceLock, closed: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="cuda_agent-probe-"))
    folder.chmod(0o755)
    uid = privileges.next_uid()
    privileges.hold(uid)
    try:
        threads = len(os.sched_getaffinity(0)) if request.target == "cpu" else 2
        hello = {"target": request.target, "native": ""}
        memory = request.device_bytes if request.target == "cpu" else None
        settings = WorkerSettings("probe", folder, threads, hello, memory_bytes=memory)
        settings.scratch.mkdir()
        settings.inbox.mkdir()
        policy = isolation_policy(settings, uid)
        return _forked(request, settings, policy, lock, closed)
    finally:
        privileges.release(uid)
        shutil.rmtree(folder, ignore_errors=True)


def _forked(
    request: ProbeRequest, settings: WorkerSettings, policy: Policy, lock: DeviceLock, closed: int
) -> dict[str, Any]:
    """Start the task's process and its watcher, give it turns, read its facts, and end it."""
    life, own_life = os.pipe()
    answers, own_answers = os.pipe()
    goes, own_goes = os.pipe()
    read_status, status = os.pipe()
    outer = os.fork()
    if outer == 0:
        os.close(own_life)
        os.close(answers)
        os.close(own_goes)
        inner = os.fork()
        if inner:
            os.close(own_answers)
            watch(inner, life, status)
        _begin(request, settings, policy, own_answers, goes, (0, closed, life, status, read_status))
    for descriptor in (life, own_answers, goes, status):
        os.close(descriptor)
    try:
        found = _facts(answers, own_goes, request.limit_s, lock)
    finally:
        os.close(own_life)  # its watcher ends whatever is left
        _, code = os.waitpid(outer, 0)
        for descriptor in (answers, own_goes, read_status):
            os.close(descriptor)
    return found if found is not None else _ended(os.waitstatus_to_exitcode(code))


def _ended(code: int) -> dict[str, Any]:
    why = f"signal {code - 128}" if code > 128 else f"exit status {code}"
    return {"failed": f"its process ended with {why}", "stage": "process"}


def _facts(answers: int, goes: int, limit_s: float, lock: DeviceLock) -> dict[str, Any] | None:
    """What the process says; None where it ended without a word. It gets no more time than its limit."""
    held = b""
    deadline = time.monotonic() + limit_s
    with contextlib.ExitStack() as turn:
        while True:
            ready, _, _ = select.select([answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return {"failed": f"not done after {limit_s:.0f} s", "stage": "time"}
            part = os.read(answers, 1 << 16)
            if not part:
                return None
            held += part
            if len(held) > MOST_ANSWER:
                return {"failed": "it says too much", "stage": "process"}
            while b"\n" in held:
                line, _, held = held.partition(b"\n")
                line += b"\n"
                if line == TURN:
                    waiting = time.monotonic()
                    turn.enter_context(lock.turn())
                    waited = time.monotonic() - waiting
                    left = deadline + waited - time.monotonic()
                    after = max(left - TURN_LIMIT_S, 0.0)
                    deadline = time.monotonic() + min(left, TURN_LIMIT_S)
                    os.write(goes, GO)
                elif line == DONE:
                    turn.close()
                    deadline = max(deadline, time.monotonic()) + after
                else:
                    return _read(line)


def _read(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"failed": "no facts", "stage": "process"}


def _begin(
    request: ProbeRequest,
    settings: WorkerSettings,
    policy: Policy,
    answers: int,
    goes: int,
    closed: tuple[int, ...],
) -> NoReturn:
    """Become the task's process: confined for good, then look at it."""
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        for descriptor in closed:
            os.close(descriptor)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.chdir(settings.scratch)
        os.environ.update(places(settings.scratch))
        tempfile.tempdir = None
        sys.dont_write_bytecode, sys.pycache_prefix = True, None
        keep_headers()
        apply(policy)
        _look(request, settings, answers, goes)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _look(request: ProbeRequest, settings: WorkerSettings, answers: int, goes: int) -> None:
    import torch

    from trainer.synthesis.probe.work import probe

    torch.set_num_threads(settings.threads)

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        os.write(answers, TURN)
        os.read(goes, len(GO))
        try:
            yield
        finally:
            os.write(answers, DONE)

    facts = probe(request, settings.scratch, turn)
    text = json.dumps(facts).encode() + b"\n"
    while text:
        text = text[os.write(answers, text) :]


if __name__ == "__main__":
    main()
