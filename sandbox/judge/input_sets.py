"""Input sets: what candidates and the reference run on. The judge draws and keeps them; workers see or draw copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox.accuracy.inputs import Bounds, make_inputs, shares_memory
from sandbox.accuracy.perturb_inputs import flat_storage, on_device, perturb
from sandbox.memory.footprint import FRUGAL_BYTES, bytes_of
from sandbox.task.specs import TensorSpec
from sandbox.timing.machine import release_memory
from sandbox.workers.shared_memory import Segment, layout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Source:
    """Where an input set's values come from: a seed, or a real input that was recorded."""

    distribution: str
    seed: int
    recorded: Sequence[torch.Tensor] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"distribution": self.distribution, "seed": self.seed}


@dataclass(frozen=True)
class Moment:
    """The values of an input set at some time, to be looked at later.

    tensors: gives them, to be used before the set is asked for others. held_bytes: what is kept until then.
    """

    tensors: Callable[[], list[torch.Tensor]]
    held_bytes: int = 0


class InputSet:
    """Tensors of the judge under a number that the workers know too.

    On cpu they lie in shared memory, which workers map read-only; new values are written in place,
    so a result remembered by address is stale. On cuda they are on the judge's device, and a worker
    draws its own copy. The judge draws, and follows changes, when it looks at the values: of most timed rounds it
    never does, and its device has other work while they are timed.
    """

    def __init__(self, number: int, specs: Sequence[TensorSpec], target: str) -> None:
        """Raises OSError when the memory is not there."""
        self.number, self.specs, self.target = number, tuple(specs), target
        self.offsets, size = layout(specs)
        self.segment: Segment | None = None
        self._values: list[torch.Tensor] | None = []
        """None where they are still to be drawn."""
        self._done = 0
        """How many of `perturbations` the values have seen."""
        self._bounds: Sequence[Bounds | None] = ()
        self.source = Source("none", 0)
        self.version = 0
        """Counts changes of the values."""
        self.perturbations: tuple[int, ...] = ()
        """Seeds of `perturb`, since the values were drawn."""
        self._shared: list[torch.Tensor] = []
        if target == "cpu":
            self._share(size)
            self._values = self._shared

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The values as they are now. On cuda this may draw them, and raise torch.OutOfMemoryError."""
        return self._after(len(self.perturbations))

    def _share(self, size: int) -> None:
        self.segment = Segment.create(size)
        pairs = zip(self.specs, self.offsets, strict=True)
        self._shared = [self.segment.tensor(spec, offset) for spec, offset in pairs]
        self.segment.seal()

    def fill(self, source: Source, bounds: Sequence[Bounds | None]) -> None:
        """Give it new values."""
        self.source, self.perturbations, self._bounds, self._done = source, (), tuple(bounds), 0
        self.version += 1
        if self.target == "cuda" and source.recorded is None:
            self._values = None
            return
        values = source.recorded
        if values is None:
            values = self._drawn(source)
        if self.segment is None:
            self._share(layout(self.specs)[1])
        for tensor, value in zip(self._shared, values, strict=True):
            flat_storage(tensor).copy_(flat_storage(_restrided(value, tensor)))
        if self.target == "cuda":
            self._values = [on_device(tensor, self._device()) for tensor in self._shared]

    def perturb(self, seed: int) -> None:
        """Change the values of a set that was drawn, in place (see `perturb`)."""
        if self.target == "cpu":  # workers read the same memory
            perturb(self._shared, seed)
            self._done += 1
        self.perturbations += (seed,)
        self.version += 1

    def moment(self) -> Moment:
        """The values as they are now, for later: copies, or, on cuda, how to come by drawn ones again."""
        if self.target == "cpu" or self.source.recorded is not None:
            copies = self.snapshot()
            return Moment(lambda: copies, sum(x.numel() * x.itemsize for x in copies))
        source, perturbations = self.source, self.perturbations
        return Moment(lambda: self._again(source, perturbations))

    def _again(self, source: Source, perturbations: tuple[int, ...]) -> list[torch.Tensor]:
        """The values of a source after some changes."""
        if self.source is source and self.perturbations[: len(perturbations)] == perturbations:
            return self._after(len(perturbations))
        values = self._drawn(source)
        for seed in perturbations:
            perturb(values, seed)
        return values

    def _after(self, count: int) -> list[torch.Tensor]:
        """The values after so many of the changes; those are made in place, from first to last."""
        values, done = self._values, self._done
        if values is not None and done == count:
            return values
        self._values = (
            None  # what fails halfway must leave no values that are neither these nor those
        )
        if values is None or done > count:
            values = None  # the room may be needed
            values, done = self._drawn(self.source), 0
        for seed in self.perturbations[done:count]:
            perturb(values, seed)
        self._values, self._done = values, count
        return values

    def _drawn(self, source: Source) -> list[torch.Tensor]:
        device = self._device()
        if source.recorded is not None and self.target == "cuda":
            return [on_device(tensor, device) for tensor in self._shared]
        made = make_inputs(self.specs, source.seed, source.distribution, self._bounds, device)
        if self.target == "cuda" and bytes_of(self.specs) >= FRUGAL_BYTES:
            release_memory(self.target)  # what drawing took beside them, four times `STEP_BYTES`
        return made

    def release(self) -> None:
        """Give up the device's memory; the values are drawn again when they are looked at. On cpu workers share it."""
        if self.target == "cuda":
            self._values, self._done = None, 0

    def snapshot(self) -> list[torch.Tensor]:
        """Copies of the values as they are now, with the same strides."""
        return [
            flat_storage(tensor).clone().as_strided(tensor.shape, tensor.stride())
            for tensor in self.tensors
        ]

    def _device(self) -> str:
        return "cuda:0" if self.target == "cuda" else "cpu"


def _restrided(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if value.stride() == like.stride() or value.numel() == 0:
        return value
    import torch

    made = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype)
    if not shares_memory(TensorSpec("uint8", tuple(like.shape), tuple(like.stride()))):
        return made.copy_(value)
    places = torch.arange(flat_storage(made).numel()).as_strided(like.shape, like.stride())
    # One by one: elements of an expanded tensor share memory, where `copy_` does not write.
    flat_storage(made)[places.reshape(-1)] = value.reshape(-1)
    return made
