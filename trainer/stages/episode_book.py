"""The episodes of an evaluation, one JSON line each as it ends: what was played is there when all else was cut.

Files of several parts may be put behind each other. A line that was cut short counts for nothing.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

Key = tuple[str, int, str]
"""Policy, budget, task: an evaluation plays each once."""


class BadBook(Exception):
    """A file of episodes cannot be used: which, where, why, and what to do."""


@dataclass(frozen=True)
class Line:
    """One episode.

    budget: judgements that it was told of. family: of the task. won: whether a kernel was promoted. speed: the best
    speed-up that a verdict proved, 0 for none. reward: None where it is not known. judgements: asked for. seconds: of
    its tools, without waiting for others. end, reason: why it ended, as a word and in words. counts: whether it says
    anything of the policy. weights: which ones spoke, "" for a search. how: names the settings that it was played by,
    "" where an older version did not.
    """

    policy: str
    budget: int
    task: str
    family: str
    won: bool
    speed: float
    reward: float | None
    judgements: float
    seconds: float
    end: str
    reason: str
    counts: bool
    weights: str = ""
    how: str = ""

    @property
    def key(self) -> Key:
        """Which episode it is."""
        return self.policy, self.budget, self.task

    @property
    def speedup(self) -> float:
        """Of what is promoted; 1 where nothing is, as the baseline stays then."""
        return self.speed if self.won and self.speed > 1.0 else 1.0


class EpisodeBook:
    """A file of lines, written by any number of threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path, self._guard = path, threading.Lock()

    def add(self, line: Line) -> None:
        """Keep an episode. Raises OSError where the disk is full; lines before it stay whole."""
        text = json.dumps(asdict(line), sort_keys=True).encode() + b"\n"
        with self._guard:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                if _is_cut(file):
                    text = b"\n" + text
                file.write(text)

    def lines(self, weights: str = "") -> list[Line]:
        """All whole ones, in their order. Raises `BadBook` where something else is in the file, or an episode of other
        weights than these."""
        if not self.path.is_file():
            return []
        found = []
        for number, text in enumerate(self.path.read_bytes().splitlines(), 1):
            try:
                value = json.loads(text)
            except ValueError:  # cut as it was written: the episode is played again
                continue
            found.append(_read(value, f"{self.path}, line {number}"))
            if found[-1].weights not in ("", weights):
                raise BadBook(
                    f"{self.path}, line {number} is of the weights {found[-1].weights}, and these are "
                    f"{weights or 'none'}: another policy was evaluated there; name another --out"
                )
        return found


def _is_cut(file: Any) -> bool:
    """Whether its last line has no end."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) != b"\n")


def _read(value: Any, where: str) -> Line:
    names = {field.name for field in fields(Line)}
    try:
        return Line(**{name: given for name, given in value.items() if name in names})
    except (TypeError, AttributeError) as error:
        raise BadBook(f"{where} is no episode: {error}; remove the line") from None


def sorted_out(lines: Iterable[Line]) -> tuple[Mapping[Key, Line], frozenset[Key]]:
    """The episodes that count, the first where one was played twice; and those that were played in vain only."""
    counted: dict[Key, Line] = {}
    lost = set()
    for line in lines:
        if line.counts:
            counted.setdefault(line.key, line)
        else:
            lost.add(line.key)
    return counted, frozenset(lost - counted.keys())
