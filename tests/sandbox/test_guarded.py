"""Shared memory, and what was written where it should not have been."""

from __future__ import annotations

import mmap
import os

import pytest
import torch
from judge_kit import spec

from sandbox.task.specs import TensorSpec
from sandbox.workers.guard_bands import GUARD, clobber_guards, inspect_segment, poison_segment
from sandbox.workers.shared_memory import Segment, layout

SPECS = (spec(10, 10), TensorSpec("float32", (4, 4), (8, 2)), spec(3, dtype="int64"))


def poisoned() -> tuple[Segment, list[int]]:
    offsets, size = layout(SPECS, GUARD)
    segment = Segment.create(size)
    poison_segment(segment, 0xFF)
    for offset, wanted in zip(offsets, SPECS, strict=True):
        segment.tensor(wanted, offset).fill_(7)
    return segment, offsets


def test_writing_all_of_the_outputs_is_fine() -> None:
    segment, offsets = poisoned()
    assert inspect_segment(segment, offsets, SPECS, 0xFF) == ""


@pytest.mark.parametrize(
    ("output", "byte", "reason"),
    [
        (0, -1, "wrote before output 0"),
        (0, 400, "wrote between outputs 0 and 1"),
        (1, -4, "wrote between outputs 0 and 1"),
        (1, 4, "wrote between the elements of output 1"),
        (2, 24, "wrote beyond output 2"),
    ],
)
def test_other_writes_are_seen(output: int, byte: int, reason: str) -> None:
    segment, offsets = poisoned()
    segment.bytes()[offsets[output] + byte] = 1
    assert inspect_segment(segment, offsets, SPECS, 0xFF) == reason


def test_what_no_worker_copied_anew_is_seen() -> None:
    """As where the segment still holds, guard bands and all, what a run before has left."""
    segment, offsets = poisoned()
    before = [segment.tensor(wanted, at).clone() for wanted, at in zip(SPECS, offsets, strict=True)]
    clobber_guards(segment, offsets, SPECS, 0xFF)
    assert inspect_segment(segment, offsets, SPECS, 0xFF) == "wrote before output 0"
    after = [segment.tensor(wanted, at) for wanted, at in zip(SPECS, offsets, strict=True)]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("band", [0, 1, 2, 3])
def test_every_guard_band_is_spoilt(band: int) -> None:
    segment, offsets = poisoned()
    whole = segment.bytes().clone()
    clobber_guards(segment, offsets, SPECS, 0xFF)
    spoilt = segment.bytes().clone()
    ends = [at + wanted.extent * wanted.itemsize for wanted, at in zip(SPECS, offsets, strict=True)]
    first, last = [0, *ends][band], [*offsets, len(whole)][band]
    assert (spoilt[first:last] == 0).all()
    segment.bytes()[:] = whole
    segment.bytes()[first:last] = spoilt[first:last]
    assert inspect_segment(segment, offsets, SPECS, 0xFF) != ""


def test_sealed_memory_cannot_be_mapped_writable_again() -> None:
    segment = Segment.create(4096)
    segment.bytes().fill_(3)
    segment.seal()
    segment.bytes().fill_(4)
    reader = Segment(os.dup(segment.fd), 4096, writable=False)
    assert reader.bytes()[17] == 4
    with pytest.raises(PermissionError):
        mmap.mmap(segment.fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def test_tensors_outlive_the_closing_of_their_memory() -> None:
    segment = Segment.create(4096)
    tensor = segment.tensor(spec(8), 64)
    segment.close()
    del segment
    assert torch.equal(tensor.fill_(2), torch.full((8,), 2.0))
