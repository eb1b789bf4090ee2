"""The largest or smallest of rows -> CUDA, from one read of each row (``select.cuh``).

A block reads a row and keeps it in registers where it fits. Radix passes would count in shared memory what every thread
holds, and rows of one sign and size meet in few counters; the least elements of groups of threads bound the selection
with one comparison for each element instead, however the numbers lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cuda_agent_backend.codegen.cuda.common.text import kernel_lines
from cuda_agent_backend.codegen.cuda.sort.match import Sorting
from cuda_agent_backend.codegen.cuda.sort.row_kernel import (
    ENTRY,
    CudaRows,
    element_bytes,
    index_type,
    packed,
    place,
    prelude,
    result,
    word,
)
from cuda_agent_backend.codegen.ir.device import MAX_THREADS, WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer, switch
from sandbox.task.specs import ITEM_SIZES

KEPT_WORDS = 48
"""Registers for what a thread holds of a row."""
GROUPS_EACH = 8
"""Groups for each selected element, where there are threads for them: few then have more than one of the selected."""
VECTOR_BYTES = 16
ORDER = ((256, 0), (512, 1), (256, 1), (512, 0), (128, 0), (1024, 0), (64, 0), (32, 1), (32, 0))
"""Threads, and whether rows are kept: better guesses first. What is read again comes from the L2 cache, and only to
the threads of the groups that count, while registers for a row leave room for few blocks."""


@dataclass(frozen=True)
class SelectionBlock:
    """The schedule's parameters."""

    threads: int = integer("threads of a block", most=MAX_THREADS)
    vector: int = integer("elements of a load")
    groups: int = integer(
        "groups of threads with a least element each, at least as many as are selected"
    )
    kept: int = switch("1 where the row stays in registers, 0 where it is read again")

    across: ClassVar[int] = 1

    def chunks(self, form: Sorting) -> int:
        return ceildiv(form.length, self.threads * self.vector)

    def shared_bytes(self, form: Sorting) -> int:
        """A count, the groups and their bound, and what may be left: all that the selected groups hold."""
        of_group = self.threads // self.groups * self.chunks(form) * self.vector
        left = min(form.length, form.kept * of_group)
        return element_bytes(form, True) * (2 + self.groups + left)

    def check(self, form: Sorting, device: DeviceFacts) -> None:
        powers = (self.threads, self.vector, self.groups)
        if any(n < 1 or n & (n - 1) for n in powers) or not WARP <= self.threads <= MAX_THREADS:
            raise Unsupported("threads, groups or vectors that are no powers of two")
        lanes = self.threads // self.groups
        if not 1 <= lanes <= WARP or self.groups < form.kept or self.kept not in (0, 1):
            raise Unsupported(f"{self.groups} groups of {self.threads} threads")
        if self.vector > largest_vector(form):
            raise Unsupported(f"rows that are not aligned to {self.vector} elements")
        words = self.chunks(form) * self.vector * max(4, ITEM_SIZES[form.source.dtype]) // 4
        if self.kept and words > KEPT_WORDS:
            raise Unsupported(f"{words} words of a row for each thread")
        if self.shared_bytes(form) > device.shared_per_block_bytes:
            raise Unsupported(f"{self.shared_bytes(form)} bytes of shared memory")

    def source(self, form: Sorting, given: Sequence[str]) -> list[str]:
        index = index_type(form)
        sizes = f"{self.threads}, {self.chunks(form)}, {self.vector}, {self.groups}"
        flags = (bool(self.kept), form.values is not None, form.places is not None)
        body = [
            "  extern __shared__ __align__(16) unsigned char shared[];",
            "  const int64_t row = blockIdx.x;",
            f"  ca::select_row<{packed(form, True)}, {sizes}, {', '.join(map(word, flags))}>(",
            f"      in + ({place(form.source, 'row')}), {index}({form.source.step}),",
            f"      {result(form, 'values', form.values)},",
            f"      {result(form, 'places', form.places)}, {form.length}, {form.kept}, shared);",
        ]
        lines = kernel_lines(ENTRY, self.threads, given, body)
        return [*prelude(form, "cuda/sort/select.cuh"), *lines, ""]


def largest_vector(form: Sorting) -> int:
    """Elements of a load that every row's alignment allows."""
    if form.source.step != 1:
        return 1
    most = VECTOR_BYTES // ITEM_SIZES[form.source.dtype]
    steps = (form.length, *(step for _, step in form.source.outer))
    return next(v for v in (16, 8, 4, 2, 1) if v <= most and all(s % v == 0 for s in steps))


class CudaSelection(CudaRows):
    """A selection from rows."""

    family = "selection"
    block = SelectionBlock

    def proposals(self, device: DeviceFacts) -> list[SelectionBlock]:
        fitting = [block for block in self._blocks() if self.fits(block, device)]
        length = self.form.length
        crowded = [b for b in fitting if b.threads * b.vector < length or b.threads == WARP]
        return crowded or fitting

    def _blocks(self) -> Iterator[SelectionBlock]:
        vector = largest_vector(self.form)
        for threads, kept in ORDER:
            wanted = 1 << (GROUPS_EACH * self.form.kept - 1).bit_length()
            groups = min(threads, max(wanted, threads // WARP))
            yield SelectionBlock(threads, vector, groups, kept)
