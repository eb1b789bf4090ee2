"""Where regions come from: training sets, task files, or regions that were found before."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.bench.discovery import NoSuchPath, discover
from sandbox.task.specs import ITEM_SIZES
from sandbox.task.task import Task, TaskError

MOST_BYTES = 256 << 20
"""Of a region's largest tensor: larger ones take longer than what they teach is worth."""
REGIONS = "regions.jsonl"
"""In a run's folder: the regions of the sources looked at, from which a run goes on, and another may begin."""


@dataclass(frozen=True)
class Source:
    """A program whose regions are wanted. code: its text; families, split: of a training set, where it has them. claim:
    the device, seed number and rung that the composer is said to have made it from, where a set says so. large: whether
    it has an input of which a region would be too large."""

    name: str
    code: str
    training: bool = False
    families: tuple[str, ...] = ()
    split: str = ""
    claim: tuple[str, int, int] | None = None
    large: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether our composer makes this very program: whatever a file says, code of others gets a process for each
        program (see `trainer.synthesis.probe.server`)."""
        from trainer.synthesis.compose.rules import RuleComposer
        from trainer.synthesis.compose.task import Composed, Wishes

        if self.claim is None:
            return False
        device, seed, rung = self.claim
        made = RuleComposer(Wishes.of(device)).compose(seed, rung)
        return isinstance(made, Composed) and made.code == self.code


@dataclass(frozen=True)
class Region:
    """A task in canonical form, as JSON, and the program that it is from."""

    source: str
    task: str
    families: tuple[str, ...] = ()
    split: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Region:
        """From `to_json`. Raises KeyError or TypeError on anything else."""
        return Region(**{**value, "families": tuple(value.get("families", ()))})


@dataclass(frozen=True)
class NoTasks:
    """A path gives none, and why."""

    reason: str


def sources(paths: Sequence[Path], most_bytes: int = MOST_BYTES) -> list[Source | Region] | NoTasks:
    """All programs and regions of the paths, in their order: folders and .py files of tasks, .parquet files of training
    sets, .jsonl files of regions, .json files of one task in canonical form.

    most_bytes: programs of a set with a larger input are large, and come last, since few of their regions have smaller
    tensors only.
    """
    found: list[Source | Region] = []
    for path in paths:
        try:
            match path.suffix:
                case ".parquet":
                    found += _of_set(path, most_bytes)
                case ".jsonl":
                    found += [r for line in _lines(path) for r in regions_in(line)]
                case ".json":
                    text = Task.from_json(path.read_text(encoding="utf-8")).to_json()
                    found.append(Region(path.stem, text))
                case _:
                    files = discover([path])
                    if isinstance(files, NoSuchPath):
                        return NoTasks(files.reason)
                    texts = ((task, task.path.read_text(encoding="utf-8")) for task in files.tasks)
                    found += [Source(task.name, text, _trains(text)) for task, text in texts]
        except (OSError, ValueError, KeyError, TypeError, TaskError) as error:
            return NoTasks(f"{path} holds no tasks: {error}")
    return found or NoTasks(f"no tasks in {', '.join(map(str, paths))}")


def regions_in(line: Mapping[str, Any]) -> list[Region]:
    """The regions of a line of `REGIONS`."""
    return [Region.from_json(one) for one in line["regions"]]


def part_of(found: Sequence[Any], number: int, of: int) -> list[Any]:
    """Every ``of``-th, beginning with the ``number``-th (from 1)."""
    return list(found[number - 1 :: of])


def in_order(
    found: Sequence[Source | Region], begun: Collection[str] = ()
) -> list[list[Source | Region]]:
    """Those to be measured first, and large ones. begun: names of programs with a table; they come after the others."""
    groups: list[list[Source | Region]] = [[], []]
    for one in sorted(found, key=lambda one: _program(one) in begun):
        groups[isinstance(one, Source) and one.large].append(one)
    return groups


def _program(one: Source | Region) -> str:
    return one.name if isinstance(one, Source) else one.source


def in_passes(programs: Iterable[Sequence[Region]]) -> Iterator[Region]:
    """The first region of each program as soon as that is looked at, then the second of each, and so on: a run that is
    cut knows something of as many programs as it could. Regions that come one by one are told apart by their source."""
    later: dict[str, deque[Region]] = {}
    for regions in programs:
        for region in regions:
            if region.source in later:
                later[region.source].append(region)
            else:
                later[region.source] = deque()
                yield region
    while later := {source: left for source, left in later.items() if left}:
        for left in later.values():
            yield left.popleft()


def _of_set(path: Path, most_bytes: int) -> list[Source]:
    from trainer.synthesis.dataset.parquet import read

    rows = [(number, row, _largest(row) > most_bytes) for number, row in enumerate(read(path))]
    return [
        Source(
            str(row.get("id") or f"{path.stem}-{number}"),
            row["code"],
            bool(row.get("training")),
            tuple(row.get("families") or ()),
            row.get("split") or "",
            _claim(row),
            large,
        )
        for number, row, large in sorted(rows, key=lambda row: row[2])
    ]


def _largest(row: Mapping[str, Any]) -> int:
    """Bytes of a row's largest input; 0 where it says nothing of them."""
    given = row.get("inputs") or ()
    sizes = (math.prod(one["shape"]) * ITEM_SIZES.get(one["dtype"], 8) for one in given)
    return max(sizes, default=0)


def _claim(row: Mapping[str, Any]) -> tuple[str, int, int] | None:
    device, seed, rung = (row.get(name) for name in ("device", "seed", "rung"))
    if device not in ("cpu", "cuda") or not isinstance(seed, int) or not isinstance(rung, int):
        return None
    return str(device), seed, rung


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):  # a kill may have cut the last one off
                yield json.loads(line)


def _trains(code: str) -> bool:
    """Whether a task file says that forward and backward count."""
    import ast

    for node in ast.parse(code).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "TRAINING" for t in node.targets
        ):
            return isinstance(node.value, ast.Constant) and bool(node.value.value)
    return False
