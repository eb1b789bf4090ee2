"""Run a candidate on buffers with guard bands and poison, to see writes out of bounds and unwritten parts.

Outputs lie in memory shared with the judge, who inspects it afterwards. On cpu the candidate writes there, so the judge
poisons all of it before. On cuda no code of a candidate runs on the host: the worker poisons memory of the device,
where the candidate writes, and copies it over; the judge spoils the guard bands before, so that what was not copied
anew is seen, and no large memory is filled and moved to the device for nothing. Temporaries lie in memory of the worker
with guard bands of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.task.specs import TensorSpec
from sandbox.workers.shared_memory import Segment

if TYPE_CHECKING:
    import torch

    from sandbox.launcher import Program

GUARD = 4096
"""Bytes before and after each buffer."""
COPIED = 1 << 26
"""Bytes of an input up to which a copy of it tells whether it was written to."""


def run_guarded(
    program: Program,
    inputs: Sequence[torch.Tensor],
    segment: Segment,
    offsets: Sequence[int],
    specs: Sequence[TensorSpec],
    poison: int,
) -> str:
    """Run once. Returns which temporary was overrun, else an empty string.

    The outputs are read from `segment`. Raises RuntimeError on a CUDA error.
    """
    import torch

    from sandbox.accuracy.clobber_outputs import clobber

    device = inputs[0].device
    shared = segment.bytes()
    block = shared if device.type == "cpu" else torch.full_like(shared, poison, device=device)
    temporaries = [
        torch.full(
            (spec.extent * spec.itemsize + 2 * GUARD,), poison, dtype=torch.uint8, device=device
        )
        for spec in program.plan.temporary_specs
    ]
    kept = [_Known(tensor) for tensor in inputs] if device.type == "cuda" else []
    pointers = [tensor.data_ptr() for tensor in inputs]
    pointers += [block.data_ptr() + offset for offset in offsets]
    pointers += [buffer.data_ptr() + GUARD for buffer in temporaries]
    if device.type == "cpu":
        program.launch(pointers)
    else:
        program.launch(pointers, torch.cuda.current_stream(device).cuda_stream, device.index)
        torch.cuda.synchronize(device)
        shared.copy_(block)
        for number, (before, after) in enumerate(zip(kept, inputs, strict=True)):
            if not before.still(after):
                return f"wrote to input {number}"
    damage = _overrun(temporaries, poison)
    # a run through the operator may follow, on the same inputs and in the same memory
    if device.type == "cuda":
        clobber([block, *temporaries], [])
    return damage


def _overrun(temporaries: Sequence[torch.Tensor], poison: int) -> str:
    """Which temporary's guard bands were written to, else empty."""
    import torch

    for number, buffer in enumerate(temporaries):
        edges = torch.cat([buffer[:GUARD], buffer[-GUARD:]])
        if bool((edges != poison).any()):
            return f"wrote beyond temporary {number}"
    return ""


class _Known:
    """What a tensor holds, to be told from what it holds later: a copy, or, of a large one, two fingerprints by seeds
    that no code on the device can know."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copy = tensor.clone() if tensor.nbytes <= COPIED else None
        self._seeds = [secrets.randbits(62) for _ in range(2)]
        self._prints = [] if self._copy is not None else self._of(tensor)

    def still(self, tensor: torch.Tensor) -> bool:
        import torch

        if self._copy is not None:
            return torch.equal(_raw(self._copy), _raw(tensor))
        return self._of(tensor) == self._prints

    def _of(self, tensor: torch.Tensor) -> list[int]:
        from sandbox.accuracy.fingerprint import fingerprints

        return [fingerprints([tensor], seed)[0] for seed in self._seeds]


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, so that NaN equals itself."""
    import torch

    return (
        tensor.contiguous().view(-1).view(torch.uint8)
        if tensor.dim()
        else tensor.view(1).view(torch.uint8)
    )


def poison_segment(segment: Segment, poison: int) -> None:
    """Fill everything with one byte."""
    segment.bytes().fill_(poison)


def clobber_guards(
    segment: Segment, offsets: Sequence[int], specs: Sequence[TensorSpec], poison: int
) -> None:
    """Fill what lies around the outputs with a byte that is not the poison; the outputs are left as they are."""
    data, position = segment.bytes(), 0
    for offset, spec in zip(offsets, specs, strict=True):
        data[position:offset] = poison ^ 0xFF
        position = offset + spec.extent * spec.itemsize
    data[position:] = poison ^ 0xFF


def inspect_segment(
    segment: Segment, offsets: Sequence[int], specs: Sequence[TensorSpec], poison: int
) -> str:
    """Which output was overrun (guard bands and gaps between strided elements), else empty."""
    data = segment.bytes()
    position = 0
    for number, (offset, spec) in enumerate(zip(offsets, specs, strict=True)):
        end = offset + spec.extent * spec.itemsize
        if bool((data[position:offset] != poison).any()):
            return (
                f"wrote before output {number}"
                if number == 0
                else f"wrote between outputs {number - 1} and {number}"
            )
        if spec.extent != spec.numel and _gaps_touched(data[offset:end], spec, poison):
            return f"wrote between the elements of output {number}"
        position = end
    if bool((data[position:] != poison).any()):
        return f"wrote beyond output {len(specs) - 1}"
    return ""


def _gaps_touched(data: torch.Tensor, spec: TensorSpec, poison: int) -> bool:
    import torch

    mine = torch.zeros(spec.extent, dtype=torch.bool)
    mine.as_strided(spec.shape, spec.stride).fill_(True)
    touched = (data != poison).view(-1, spec.itemsize).any(1)
    return bool((touched & ~mine).any())
