"""One set out of its pieces, which may have been made on several cards and at several times.

The set is the first so many tasks in the order of seed numbers, whatever the pieces were. So it ends where a piece has
not got to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.synthesis import pace
from trainer.synthesis.dataset import journal
from trainer.synthesis.dataset.rows import row_of
from trainer.synthesis.filters.similarity import Program
from trainer.synthesis.run import REPORT, write_rows
from trainer.synthesis.tally import Tally

ALIKE = ("seed", "composer", "device", "torch", "transformers", "window", "sizes")
"""What pieces of one set have in common. The card may be another one: each row names its own."""
NAMES = ("device", "device_name", "torch", "transformers")


@dataclass(frozen=True)
class Piece:
    """A journal that was read. entries: by seed number."""

    path: Path
    identity: dict[str, Any]
    entries: dict[int, dict[str, Any]]

    @property
    def part(self) -> tuple[int, int]:
        """Which piece, from 1, and of how many."""
        number, of = self.identity["part"]
        return int(number), int(of)


@dataclass(frozen=True)
class NotMerged:
    """The pieces make no set, and why."""

    reason: str


@dataclass(frozen=True)
class Merged:
    """rows: of the set. lacking: what has to be done for more tasks; "" where there are as many as wanted."""

    rows: list[dict[str, Any]]
    report: dict[str, Any]
    lacking: str


def merge(folders: Sequence[Path], count: int, programs: Sequence[Program]) -> Merged | NotMerged:
    """The first so many tasks of the pieces in these folders. Raises OSError where one cannot be read."""
    pieces = [_piece(folder) for folder in folders]
    for piece in pieces:
        if isinstance(piece, NotMerged):
            return piece
    found = [piece for piece in pieces if isinstance(piece, Piece)]
    wrong = _why_not(found)
    if wrong:
        return NotMerged(wrong)
    by_seed = {
        seed: (entry, piece.identity) for piece in found for seed, entry in piece.entries.items()
    }
    tally = Tally.of(count, programs)
    names: dict[int, dict[str, Any]] = {}
    seed = int(found[0].identity["seed"]) * 1_000_000
    while seed in by_seed and len(tally.kept) < count:
        entry, names[seed] = by_seed[seed]
        tally.take(entry)
        seed += 1
    rows = [
        row_of(entry, {name: names[entry["seed"]][name] for name in NAMES}) for entry in tally.kept
    ]
    lacking = "" if len(rows) >= count else _lacking(seed, found)
    runs = [run for piece in found for run in pace.runs_in(piece.path.with_name(REPORT))]
    return Merged(rows, {**tally.report(), "pieces": len(found), pace.RUNS: runs}, lacking)


def write(merged: Merged, file: Path) -> None:
    """The set's file, its card, its plots and its report. May raise OSError."""
    write_rows(merged.rows, merged.report, file)


def _piece(folder: Path) -> Piece | NotMerged:
    path = folder / journal.NAME if folder.is_dir() else folder
    if not path.is_file():
        return NotMerged(f"there is no {journal.NAME} in {folder}")
    lines = journal.lines(path.read_bytes())
    if not lines or "part" not in lines[0].get("identity", {}):
        return NotMerged(f"{path} is no journal of a piece")
    return Piece(path, lines[0]["identity"], {entry["seed"]: entry for entry in lines[1:]})


def _why_not(pieces: Sequence[Piece]) -> str:
    if not pieces:
        return "no pieces are named"
    first = pieces[0]
    parts: dict[tuple[int, int], Path] = {}
    for piece in pieces:
        for name in ALIKE:
            if piece.identity.get(name) != first.identity.get(name):
                return f"{piece.path} and {first.path} differ in {name}"
        if piece.part[1] != first.part[1]:
            return f"{piece.path} is one of {piece.part[1]} pieces, {first.path} of {first.part[1]}"
        if piece.part in parts:
            return f"{piece.path} and {parts[piece.part]} are the same piece"
        parts[piece.part] = piece.path
    return ""


def _lacking(seed: int, pieces: Sequence[Piece]) -> str:
    of = pieces[0].part[1]
    number = seed % of + 1
    if number not in {piece.part[0] for piece in pieces}:
        return f"piece {number}/{of} is not there"
    larger = "with a larger --count where it has its share already"
    return f"piece {number}/{of} has to go on at seed number {seed}, {larger}"
