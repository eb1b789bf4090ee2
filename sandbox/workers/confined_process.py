"""A process that is forked from this one and confined like a worker before it runs what nobody trusts.

For a parent that has imported what such a process needs, torch among it, and has not woken the device. Two are forked:
the outer one only watches (see `worker.watch`), so the inner one and all that it starts end at the latest with the
parent. They reach no network, see no other process, and read no files but Python's, those of their own folder and
those that they are given.

Not covered: that all processes of one parent have the same memory layout (see `fork_server`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox import scratch
from sandbox.isolation import privileges, trees
from sandbox.isolation.confine import Policy, apply
from sandbox.workers.fork_server import settle
from sandbox.workers.settings import WorkerSettings, isolation_policy
from sandbox.workers.worker import run_and_exit, watch

_lives: set[int] = set()
"""This end of the pipes that keep processes alive: one that is forked later must not hold those of earlier ones."""


@dataclass(frozen=True)
class Wanted:
    """What a process is to be like. purpose: what its folder's name begins with. threads: torch's.

    memory_bytes: what it may call its own; not limited on cuda. read: folders that it may read besides.
    """

    purpose: str
    target: str
    threads: int
    memory_bytes: int
    read: Sequence[Path] = ()


class ConfinedProcess:
    """This end of it. Whoever makes one has to `end` it, also where it has ended by itself."""

    def __init__(
        self,
        wanted: Wanted,
        run: Callable[[Path], object],
        given: Sequence[int] = (),
        kept: Sequence[int] = (),
    ) -> None:
        """Fork it. It runs ``run`` on a folder that it may write to, and then ends, with status 1 where that raises.

        given: descriptors that it alone gets: they are closed here. kept: those of this process that it does not get.
        The standard streams are null devices there. Raises OSError.
        """
        self._status: int | None = None
        self._folder = scratch.make(wanted.purpose)
        self._folder.chmod(0o755)  # it may have a user id of its own
        self._uid = privileges.next_uid()
        privileges.hold(self._uid)
        settings = _settings(wanted, self._folder)
        policy = _policy(settings, self._uid, wanted.read)
        their_life, ours = os.pipe()
        self._life: int | None = ours
        _lives.add(ours)
        self._outer = os.fork()
        if self._outer == 0:
            for descriptor in (*_lives, *kept):
                os.close(descriptor)
            inner = os.fork()
            if inner:
                for descriptor in given:
                    os.close(descriptor)
                watch(inner, their_life, os.open(os.devnull, os.O_WRONLY))
            os.close(their_life)
            run_and_exit(lambda: _confined(settings, policy, run))
        for descriptor in (their_life, *given):
            os.close(descriptor)

    def let_go(self) -> None:
        """Have it ended with all that it has started, without waiting until that is done: where it used a GPU, the
        driver takes its time. Whoever calls this asks `ended` later, or calls `end`."""
        if self._life is not None:
            _lives.discard(self._life)
            os.close(self._life)  # its watcher ends whatever is left
            self._life = None  # the number may be that of another pipe from now on

    def ended(self) -> bool:
        """Whether it is gone, with its folder; it does not wait for that."""
        if self._status is None:
            process, status = os.waitpid(self._outer, os.WNOHANG)
            if process:
                self._cleared(status)
        return self._status is not None

    def end(self) -> int:
        """End it with all that it has started, and remove its folder. Its exit status, or 128 and the signal."""
        if self._status is None:
            self.let_go()
            self._cleared(os.waitpid(self._outer, 0)[1])
        assert self._status is not None
        return self._status

    def _cleared(self, status: int) -> None:
        self.let_go()
        self._status = os.waitstatus_to_exitcode(status)
        privileges.release(self._uid)
        trees.remove(self._folder)


def write_all(descriptor: int, text: bytes) -> None:
    """Write to a pipe, waiting for its reader. Raises OSError, as where there is none."""
    while text:
        text = text[os.write(descriptor, text) :]


def _settings(wanted: Wanted, folder: Path) -> WorkerSettings:
    hello = {"target": wanted.target, "native": ""}
    settings = WorkerSettings(
        wanted.purpose, folder, wanted.threads, hello, memory_bytes=wanted.memory_bytes
    )
    settings.scratch.mkdir()
    settings.inbox.mkdir()
    return settings


def _policy(settings: WorkerSettings, uid: int | None, read: Sequence[Path]) -> Policy:
    policy = isolation_policy(settings, uid)
    if policy.view is None:
        return policy
    return replace(policy, view=replace(policy.view, read=(*policy.view.read, *map(str, read))))


def _confined(settings: WorkerSettings, policy: Policy, run: Callable[[Path], object]) -> None:
    _confine(settings.scratch, policy)
    import torch

    torch.set_num_threads(settings.threads)
    run(settings.scratch)


def _confine(folder: Path, policy: Policy) -> None:
    """Lead a group of its own, without standard streams, settled in a folder, and confined for good."""
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    settle(folder)
    apply(policy)
