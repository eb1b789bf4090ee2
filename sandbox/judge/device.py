"""The device that is measured: when this judge may have it, and what it can do at most."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from sandbox.judge.settings import JudgeSettings
from sandbox.memory.leases import Leases
from sandbox.timing import machine
from sandbox.timing.device_lock import DeviceLock
from sandbox.timing.machine import Ceilings

Prepared = TypeVar("Prepared")


class Device:
    """Turns on the device, leases on its memory, and its ceilings."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.target = settings.target
        self.lock = DeviceLock(settings.device_lock)
        self.leases = Leases(
            settings.device_lock, settings.device_memory, in_turn=lambda: self.lock.in_turn
        )
        self._ceilings = settings.ceilings
        self._sure_of_ceilings = False

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for other processes' turns and leases."""
        return self.lock.waited_s + self.leases.waited_s

    def shared(self) -> AbstractContextManager[None]:
        """The device together with others that time nothing."""
        return self.lock.shared()

    def turn(self) -> AbstractContextManager[None]:
        """The device alone."""
        return self.lock.turn()

    def beside_others(self, prepare: Callable[[], Prepared]) -> Prepared | None:
        """Prepare a race beside others' checks; None where there is no memory for it, which there may be alone."""
        import torch

        try:
            with self.shared():
                return prepare()
        except torch.OutOfMemoryError:
            self.release_memory()
            return None

    def release_memory(self) -> None:
        """Give up what this process keeps of the device's memory for later."""
        machine.release_memory(self.target)

    @property
    def ceilings_bytes(self) -> int:
        """What measuring the ceilings takes of the device's memory; 0 where they are known."""
        return machine.ceilings_bytes(self.target) if self._ceilings is None else 0

    def load_for_ceilings(self) -> None:
        """Load what measures the ceilings, in nobody's turn, unless they are known."""
        if self._ceilings is None:
            machine.load_for_ceilings(self.target)

    def ceilings(self, again: bool = False) -> Ceilings:
        """What this machine can do at most; measured once. again: once more, to be sure, as other work on the machine
        only lowers what is found, until that finds nothing higher; without memory for it, what is known stands."""
        import torch

        if self._ceilings is None:
            self._ceilings = machine.ceilings(self.target)
        elif again and not self._sure_of_ceilings:
            no_memory = RuntimeError if self.target == "cpu" else torch.OutOfMemoryError
            with suppress(no_memory):
                before = self._ceilings
                self._ceilings = before.best_of(machine.ceilings(self.target))
                self._sure_of_ceilings = not self._ceilings.exceeds(before)
        return self._ceilings

    def doubt_ceilings(self) -> None:
        """Have them measured again though they seemed sure: a verdict is about to rest on them."""
        self._sure_of_ceilings = False
