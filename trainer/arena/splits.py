"""Which tables a rival learns from, and on which it is then judged."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainer.world.rows import Table

FOLDS = 5
LEAST_ROWS = 3
"""Candidates that a table must have to be played: of two, any choice is a good one."""


@dataclass(frozen=True)
class Fold:
    """Indices of tables. Those of `test` say nothing to who is trained for them."""

    train: tuple[int, ...]
    test: tuple[int, ...]


def playable(tables: Sequence[Table]) -> list[int]:
    """Tables with something to choose: several candidates, of which some work and are not alike."""
    return [
        number
        for number, table in enumerate(tables)
        if len(table.rows) >= LEAST_ROWS and sum(row.works for row in table.rows) >= 2
    ]


def judged_on(tables: Sequence[Table], numbers: Iterable[int]) -> tuple[int, ...]:
    """Which of these tables rivals are judged on: those that have nearly all schedules (`Table.complete`), as only they
    say what the best one is; all where none of them is complete."""
    every = sorted(numbers)
    return tuple([n for n in every if tables[n].complete] or every)


def by_family(tables: Sequence[Table]) -> list[Fold]:
    """Leave families out, in `FOLDS` parts: no test table has one of its family among those learnt from."""
    numbers = playable(tables)
    families = sorted({tables[n].family for n in numbers}, key=_mixed)
    parts = [set(families[k::FOLDS]) for k in range(min(FOLDS, len(families)))]
    folds = []
    for part in parts:
        test = judged_on(tables, [n for n in numbers if tables[n].family in part])
        train = tuple(n for n in numbers if tables[n].family not in part)
        if test and train:
            folds.append(Fold(train, test))
    return folds


def by_shape(tables: Sequence[Table]) -> list[Fold]:
    """Unseen sizes of known graphs: of each structure that comes several times, one table after another is left out."""
    numbers = playable(tables)
    of: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in numbers:
        of[tables[number].structure, tables[number].device_name].append(number)
    groups = [sorted(own, key=lambda n: _mixed(tables[n].id)) for own in of.values()]
    several = [own for own in groups if len(own) > 1]
    folds = []
    for k in range(FOLDS):
        test = {n for own in several for n in own[k::FOLDS]} if several else set()
        known = {tables[n].structure for n in numbers if n not in test}
        test = set(judged_on(tables, [n for n in test if tables[n].structure in known]))
        digests = {tables[n].parsed.digest for n in test}
        train = [n for n in numbers if n not in test and tables[n].parsed.digest not in digests]
        if test and train:
            folds.append(Fold(tuple(train), tuple(sorted(test))))
    return folds


def by_device(tables: Sequence[Table]) -> list[Fold]:
    """Learn on the device with most tables; test on the others, on tasks that were not learnt from."""
    return _others(tables, lambda table: table.device_name)


def by_dtype(tables: Sequence[Table]) -> list[Fold]:
    """The same for dtypes."""
    return _others(tables, lambda table: table.dtype)


SPLITS: dict[str, Callable[[Sequence[Table]], list[Fold]]] = {
    "family": by_family,
    "shape": by_shape,
    "device": by_device,
    "dtype": by_dtype,
}


def _others(tables: Sequence[Table], of: Callable[[Table], str]) -> list[Fold]:
    """Half of the tasks of the most frequent kind are learnt from where the same tasks are there for other kinds."""
    numbers = playable(tables)
    counts = Counter(of(tables[n]) for n in numbers)
    if len(counts) < 2:
        return []
    first = min(counts, key=lambda kind: (-counts[kind], kind))
    others = [n for n in numbers if of(tables[n]) != first]
    tested = {tables[n].parsed.digest for n in others}
    train = [n for n in numbers if of(tables[n]) == first]
    shared = {tables[n].parsed.digest for n in train} & tested
    held = {digest for digest in shared if int(_mixed(digest)[:8], 16) % 2}
    train = [n for n in train if tables[n].parsed.digest not in held]
    test = judged_on(tables, [n for n in others if tables[n].parsed.digest not in shared - held])
    return [Fold(tuple(train), test)] if train and test else []


def _mixed(text: str) -> str:
    """An order that has nothing to do with names."""
    return hashlib.sha256(text.encode()).hexdigest()
