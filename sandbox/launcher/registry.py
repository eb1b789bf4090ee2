"""Which program runs under which key. One table per process, shared by the Python and the native operators."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from sandbox import operator_library
from sandbox.launcher.program import Program
from sandbox.operator_library import Resolver
from sandbox.plan.plan import Plan

log = logging.getLogger(__name__)


class Mirror(Protocol):
    """A second table that is kept equal to this one (the native operator library's)."""

    def bind(self, key: int, program: Program) -> None: ...
    def unbind(self, key: int) -> None: ...


ASK_AGAIN_S = 1.0
"""For so long the resolver is not asked again about a key that it did not know: something may stand in for it."""


class UnknownKernelError(RuntimeError):
    """Compiled code refers to a kernel that this process does not have."""


_lock = threading.RLock()
_programs: dict[int, Program] = {}
_announced: dict[int, Plan] = {}
_mirror: Mirror | None = None
_resolver: Resolver | None = None
_missed: dict[int, float] = {}


def bind(key: int, program: Program) -> None:
    """Let operator calls with this key (0 <= key < 2**63) run the program. An earlier binding is replaced."""
    if not 0 <= key < 2**63:
        raise ValueError(f"key {key} is not a 63-bit integer")
    with _lock:
        _programs[key] = program
        if _mirror is not None:
            _mirror.bind(key, program)


def announce(key: int, plan: Plan) -> None:
    """Say what a key's program will look like, so that calls of it can be compiled before there is one."""
    _announced[key] = plan


def plan_of(key: int) -> Plan:
    """The plan of the key's program, or the one announced. Raises UnknownKernelError."""
    announced = None if key in _programs else _announced.get(key)
    return announced or lookup(key).plan


def unbind(key: int) -> None:
    """Forget the key. Calls already running finish; unknown keys are ignored."""
    with _lock:
        _programs.pop(key, None)
        if _mirror is not None:
            _mirror.unbind(key)


def is_bound(key: int) -> bool:
    """Whether the key has a program now. The resolver is not asked."""
    return key in _programs


def set_resolver(resolver: Resolver | None) -> None:
    """Set what is asked about unknown keys met at run time, such as those in code that torch cached on disk."""
    global _resolver
    _resolver = resolver
    _missed.clear()


def resolve(key: int) -> bool:
    """Try to get an unknown key bound. An error in the resolver is logged and counts as no."""
    if is_bound(key):
        return True
    resolver = _resolver or operator_library.default_resolver
    if resolver is None or time.monotonic() < _missed.get(key, 0.0):
        return False
    try:
        if resolver(key) and is_bound(key):
            return True
    except Exception:
        log.exception("the resolver failed on kernel key %d", key)
    _missed[key] = time.monotonic() + ASK_AGAIN_S
    return False


def lookup(key: int) -> Program:
    """The key's program, asking the resolver if need be. Raises UnknownKernelError."""
    program = _programs.get(key)
    if program is None and resolve(key):
        program = _programs.get(key)
    if program is None:
        raise UnknownKernelError(unknown_key_message(key))
    return program


def unknown_key_message(key: int) -> str:
    """What to tell a user whose compiled code refers to a kernel that is gone."""
    return (
        f"cuda_agent: no kernel with key {key} to be had in this process. Compiled code refers to kernels by key, and "
        "the kernel cache that is looked into does not have this one for this machine. Set CUDA_AGENT_CACHE_DIR to the "
        "folder of the cache that the code was compiled with, or to a copy of it. Or discard the code: compile a saved "
        "artifact anew here; after torch._dynamo.reset(), an empty TORCHINDUCTOR_CACHE_DIR does so for torch's caches."
    )


def attach(mirror: Mirror) -> None:
    """Copy all bindings into the mirror and keep it equal from now on."""
    global _mirror
    with _lock:
        for key, program in _programs.items():
            mirror.bind(key, program)
        _mirror = mirror
