"""Forks workers that have torch imported already: `python -m sandbox.workers.fork_server REQUESTS`, a seqpacket socket.

A candidate of a policy, or one that comes after a crash, gets a process of its own, and importing torch and Inductor
takes seconds. Here that is done once: what is forked is confined and greets within a fraction of one.

This process sees no candidate, no input and no expected value; it holds what importing leaves in memory. Not covered:
that all its workers have the same memory layout, which a candidate could learn in one and a later one use; what
confines them does not rest on it.

A request is a worker's folder, a cache of Inductor's or nothing, and the worker's policy, a line each, with four
descriptors (`DESCRIPTORS`). The server ends when the socket does, with the programs that it has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from sandbox.isolation import trees
from sandbox.workers import vector_checks
from sandbox.workers.inductor_store import CACHE
from sandbox.workers.worker import BYTECODE, begin, places

DESCRIPTORS = ("control", "life", "status", "log")
MAX_REQUEST = 1 << 18
PRELOADED = (
    "sandbox.workers.loop",
    "sandbox.launcher",
    "sandbox.workers.guard_bands",
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "torch._inductor.codegen.cpp",
)
ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it torch, which asks whether there is a GPU while it is imported, does not wake CUDA's driver for that."""
NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED."""


def main() -> None:
    """Entry point."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    with ends_with(requests):
        preload(PRELOADED)
    os.environ.pop(BYTECODE, None)
    warm = not cuda_is_initialized()
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # the kernel reaps: nobody here asks how a worker ended
    while True:
        try:
            content, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, len(DESCRIPTORS))
        except OSError:
            return
        if len(fds) != len(DESCRIPTORS):
            return
        folder, cache, policy = content.decode().split("\n", 2)
        if cache and not vector_checks.known():
            with ends_with(requests):
                check_instructions(cache)
        if os.fork() == 0:
            requests.close()
            start(folder, policy, fds, warm)
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def ends_with(requests: socket.socket) -> Iterator[None]:
    """Within it this process, which leads a group, is killed with it as soon as the other end of the socket is closed:
    importing and checking take seconds, and more where many processes run. No thread is left afterwards, so that it
    can fork."""
    over = socket.socketpair()

    def watch() -> None:
        poller = select.poll()
        poller.register(requests, 0)  # that nobody is there any more is told always
        poller.register(over[0], select.POLLIN)
        if requests.fileno() in dict(poller.poll()):
            os.killpg(os.getpid(), signal.SIGKILL)

    watcher = threading.Thread(target=watch, name="ends with its owner")
    watcher.start()
    try:
        yield
    finally:
        over[1].close()
        watcher.join()
        over[0].close()


def preload(modules: Iterable[str], if_there: Iterable[str] = ()) -> None:
    """Import what the processes need that are to be forked from this one, without waking the device; those of
    `if_there` where they are installed. Raises ImportError."""
    # Inductor would start processes of its own to compile in, once it is imported and again in each fork.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ[ASK_NVML] = "1"
    for name in modules:
        __import__(name)
    for name in if_there:
        with contextlib.suppress(ImportError):
            __import__(name)
    del os.environ[ASK_NVML]
    gc.collect()
    gc.freeze()


def check_instructions(cache: str) -> None:
    """Have torch find out which vector instructions processor and compiler know, which takes it some seconds: the
    workers that are forked from now on know it, and so does who else uses this cache of Inductor's. Done once.

    Where that fails each worker finds it out for itself, and it is tried again before the next one.

    It compiles in a folder of its own: the one for temporary files is a worker's.
    """
    if vector_checks.known():
        return
    try:
        with _compiling(cache):
            why = vector_checks.find_instructions()
        if why:
            print(f"the vector instructions could not be found out: {why}", file=sys.stderr)
    except Exception:
        traceback.print_exc()


@contextlib.contextmanager
def _compiling(cache: str) -> Iterator[None]:
    """For programs that this process starts and waits for, which keep nothing but what goes into the cache."""
    own = tempfile.mkdtemp(prefix="compiling-", dir=Path.cwd())
    there = {CACHE: cache, "TMPDIR": own, "TMP": own}
    before = {name: os.environ.get(name) for name in there}
    os.environ.update(there)
    tempfile.tempdir = None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else every program seems to have done well
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _reap()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        tempfile.tempdir = None
        trees.remove(Path(own))


def _reap() -> None:
    """Workers that ended meanwhile."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def start(folder: str, policy: str, fds: Sequence[int], warm: bool) -> NoReturn:
    """Become the worker. warm: go on in this image; otherwise load the program anew."""
    control, life, status, log = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    settle(Path(folder))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if warm:
        begin(control, life, status, policy)
    numbers = [str(fd) for fd in (control, life, status)]
    for fd in (control, life, status):
        os.set_inheritable(fd, True)
    os.execv(
        sys.executable, [sys.executable, "-P", "-m", "sandbox.workers.worker", *numbers, policy]
    )


def settle(folder: Path) -> None:
    """Have this process, forked from one that has torch imported, keep all that it writes in a folder of its own."""
    os.chdir(folder)
    os.environ.update(places(folder))
    tempfile.tempdir = None
    keep_headers()
    sys.dont_write_bytecode, sys.pycache_prefix = True, None


def keep_headers() -> None:
    """Let Inductor keep precompiled headers in this process's own temporary folder: it has decided where when it was
    imported, which is where the worker that the server was started for has its own, and no other may write."""
    from torch._inductor import codecache
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = Path(default_cache_dir()) / "precompiled_headers"
    for name, place in (("_HEADER_DIR", folder), ("_HEADER_LOCK_DIR", folder / "locks")):
        if hasattr(codecache, name):
            setattr(codecache, name, str(place))


def cuda_is_initialized() -> bool:
    """Whether something here has woken CUDA's driver, which no process survives a fork with."""
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED)
    return False


if __name__ == "__main__":
    main()
