"""What is run: for each operator and dtype cases that differ in sample, sizes, layout, values, threads, gradients.

Cases are not all combinations: each round takes another sample with another size, layout and so on, so that few cases
meet every one of them. float32 takes all rounds, other dtypes begin at a round that their name decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FULL = "float32"
FIRST = (1, 3)
"""The rounds of float32 that come first: both are large and not contiguous, and one has gradients."""
TOGETHER = 3
"""Cases of one cell that a worker is given at a time after that."""


@dataclass(frozen=True)
class Round:
    """How the sample of a case is changed. training: gradients too, where there are any."""

    size: str = "given"
    layout: str = "contiguous"
    values: str = "drawn"
    training: bool = False
    threads: int = 1


ROUNDS = (
    Round("given", training=True),
    Round("large", "transposed", threads=4),
    Round("large", "offset", "edge"),
    Round("large", "sliced", training=True, threads=4),
    Round("given", "expanded", "edge", threads=4),
    Round("one", "offset", training=True),
    Round("large", "channels-last", training=True, threads=4),
    Round("empty", training=True),
)


@dataclass(frozen=True)
class Cell:
    """An operator in a dtype."""

    operator: str
    dtype: str

    @property
    def name(self) -> str:
        """As cases' names begin."""
        return f"{self.operator}|{self.dtype}"


@dataclass(frozen=True)
class Case:
    """One call of an operator. number: of the round, which also says which sample is taken."""

    cell: Cell
    number: int

    @property
    def round(self) -> Round:
        """How the sample is changed."""
        return ROUNDS[self.number % len(ROUNDS)]

    @property
    def name(self) -> str:
        """Unique, the same in every run, and enough to make the case again."""
        return f"{self.cell.name}|{self.number}"

    @classmethod
    def named(cls, name: str) -> Case:
        """The case of this name. Raises ValueError on another text."""
        operator, dtype, number = name.split("|")
        return cls(Cell(operator, dtype), int(number))


def cases_of(cell: Cell, rounds: int) -> Iterator[Case]:
    """float32 has all rounds; other dtypes an eighth of them, from a round that is theirs."""
    if cell.dtype == FULL:
        yield from (Case(cell, number) for number in range(rounds))
        return
    first = stable(cell.name) % len(ROUNDS)
    yield from (Case(cell, first + n) for n in range(max(1, rounds // len(ROUNDS))))


def batches_of(cells: Sequence[Cell], rounds: int, dtypes: Sequence[str]) -> list[list[Case]]:
    """All cases, a few of one cell together: first two of float32 for every operator, then the other dtypes, then the
    rest of float32, so that a run that is cut has seen something of everything."""
    waves: dict[int, list[list[Case]]] = {}
    for cell in ordered(cells, dtypes):
        cases = list(cases_of(cell, rounds))
        if cell.dtype != FULL:
            waves.setdefault(1, []).append(cases)
            continue
        first = [case for case in cases if case.number in FIRST]
        waves.setdefault(0, []).append(first)
        rest = [case for case in cases if case.number not in FIRST]
        for start in range(0, len(rest), TOGETHER):
            waves.setdefault(2 + start, []).append(rest[start : start + TOGETHER])
    return [batch for _, wave in sorted(waves.items()) for batch in wave if batch]


def stable(text: str) -> int:
    """A number that a text always has."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def part(names: Sequence[str], which: int, of: int) -> list[str]:
    """The operators of one of so many parts, counted from 1. An operator is always in the same part."""
    return [name for name in names if stable(name) % of == which - 1]


def ordered(cells: Sequence[Cell], dtypes: Sequence[str]) -> list[Cell]:
    """By dtype, and within it well mixed, so that a run that is cut has seen some of everything."""
    return sorted(cells, key=lambda cell: (dtypes.index(cell.dtype), stable(cell.name)))
