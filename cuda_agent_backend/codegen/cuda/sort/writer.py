"""Sorts of rows -> CUDA: networks in a thread's registers, then merges in shared memory (``sort.cuh``).

Merges, not radix passes: a row of thousands takes seven rounds of about ten instructions for each element, while a pass
over eight bits of a key takes some forty and 32 bits take four. Nor one network over all threads: it compares each
element 66 times in a row of 2,048.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from cuda_agent_backend.codegen.ir.parameters import integer

THREADS = 128
"""Of a block that sorts several rows."""
EACH = tuple(range(3, 22, 2))
WORDS = 48
"""Registers for a thread's elements."""
REGISTERS, OTHER_REGISTERS = 1 << 16, 8
"""Of a multiprocessor; those beside two words for each word of a thread's elements, as the assembler reports them."""


def sort_pairs(count: int) -> Iterator[tuple[int, int]]:
    """Batcher's odd-even merge sort of ``count`` elements: the pairs to put in order, one after the other."""
    p = 1
    while p < count:
        k = p
        while k:
            for j in range(k % p, count - k, 2 * k):
                for i in range(j, min(j + k, count - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        yield i, i + k
            k //= 2
        p *= 2


def merge_pairs(count: int) -> Iterator[tuple[int, int]]:
    """The pairs that order elements which fall first and then rise: as if the largest came after them."""
    step = 1 << max(count - 1, 0).bit_length() >> 1
    while step:
        yield from ((i, i + step) for i in range(count - step) if not i & step)
        step //= 2


def network(count: int) -> list[str]:
    """Both networks in C."""

    def function(name: str, pairs: Iterator[tuple[int, int]]) -> list[str]:
        calls = [f"    ca::order(x[{a}], x[{b}]);" for a, b in pairs]
        head = f"  template <class E> static CA_INLINE void {name}(E (&x)[{count}]) {{"
        return [head, *calls, "  }"]

    sort, merge = function("sort", sort_pairs(count)), function("merge", merge_pairs(count))
    return ["struct network {", *sort, *merge, "};"]


def element(form: Sorting) -> int:
    """Bytes of what threads compare."""
    return element_bytes(form, form.places is not None)


@dataclass(frozen=True)
class SortTeam:
    """The schedule's parameters."""

    team: int = integer("threads of a row")
    each: int = integer("elements of a thread, odd, so that neighbours store to different banks")

    @property
    def across(self) -> int:
        """Rows of a block."""
        return max(1, THREADS // self.team) if self.team <= WARP else 1

    @property
    def threads(self) -> int:
        return self.team * self.across

    def shared_bytes(self, form: Sorting) -> int:
        return self.threads * (self.each * element(form) + 4)

    def cost(self, element: int) -> float:
        """Instructions for a row, to compare schedules by."""
        compare = 2 if element == 4 else 6 if element == 8 else 10
        rounds = max(self.team - 1, 0).bit_length()
        search = 10 * (math.log2(self.each) + rounds / 2)
        merge = compare * len(list(merge_pairs(self.each))) + (3 + element // 4) * self.each
        own = compare * len(list(sort_pairs(self.each))) + 12 * self.each
        return max(self.team, 1) * (own + rounds * (search + merge + 20))

    def check(self, form: Sorting, device: DeviceFacts) -> None:
        whole = self.team % WARP == 0 or (self.team in (1, 2, 4, 8, 16))
        if self.team < 1 or not whole or self.threads > MAX_THREADS:
            raise Unsupported(f"{self.team} threads for a row")
        if self.each < 1 or self.each % 2 == 0 or self.each * element(form) // 4 > WORDS:
            raise Unsupported(f"{self.each} elements of a thread")
        if self.each * element(form) // 2 + OTHER_REGISTERS > REGISTERS // self.threads:
            raise Unsupported(
                f"too few registers for {self.each} elements of {self.threads} threads"
            )
        if not self.team * self.each >= form.length:
            raise Unsupported(f"{self.team} threads with {self.each} of {form.length} elements")
        if self.shared_bytes(form) > device.shared_per_block_bytes:
            raise Unsupported(f"{self.shared_bytes(form)} bytes of shared memory")

    def source(self, form: Sorting, given: Sequence[str]) -> list[str]:
        index = index_type(form)
        wanted = (form.values is not None, form.places is not None)
        sizes = f"{self.team}, {self.across}, {self.each}"
        body = [
            "  extern __shared__ __align__(16) unsigned char shared[];",
            f"  const int64_t mine = int64_t(blockIdx.x) * {self.across} + threadIdx.x / {self.team};",
            f"  const bool there = mine < {form.rows};",
            "  const int64_t row = there ? mine : 0;",
            f"  ca::sort_row<{packed(form, wanted[1])}, network, {sizes}, {', '.join(map(word, wanted))}>(",
            f"      in + ({place(form.source, 'row')}), {index}({form.source.step}),",
            f"      {result(form, 'values', form.values)},",
            f"      {result(form, 'places', form.places)}, {form.length}, there, shared);",
        ]
        lines = kernel_lines(ENTRY, self.threads, given, body)
        return [*prelude(form), *network(self.each), *lines, ""]


def team_for(length: int, each: int) -> int:
    """As few threads as hold a row: a power of two of a warp, or whole warps."""
    wanted = ceildiv(length, each)
    return 1 << (wanted - 1).bit_length() if wanted <= WARP else ceildiv(wanted, WARP) * WARP


class CudaSort(CudaRows):
    """A sort of rows."""

    family = "sort"
    block = SortTeam

    def proposals(self, device: DeviceFacts) -> list[SortTeam]:
        found = {SortTeam(team_for(self.form.length, each), each) for each in EACH}
        fitting = [team for team in found if self.fits(team, device)]
        return sorted(fitting, key=lambda team: (team.cost(element(self.form)), team.each))
