"""Which task files there are: a decision on files' text, which runs none of them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

NEEDED = ("Model", "get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class TaskFile:
    """A task: its name is its path in the given folder without ``.py``, its group the folder that it lies in."""

    name: str
    group: str
    path: Path


@dataclass(frozen=True)
class RefusedFile:
    """A file that is no task, and why."""

    name: str
    path: Path
    reason: str


@dataclass(frozen=True)
class NoSuchPath:
    """A path that was asked for and is neither a folder nor a Python file."""

    path: Path

    @property
    def reason(self) -> str:
        """One line."""
        return f"{self.path} is neither a folder nor a Python file"


@dataclass(frozen=True)
class Found:
    """All tasks and all refused files, in the order of their names."""

    tasks: tuple[TaskFile, ...]
    refused: tuple[RefusedFile, ...]

    def part(self, number: int, of: int) -> Found:
        """Every ``of``-th task, beginning with the ``number``-th (from 1): neighbours, which are alike, are divided."""
        return Found(self.tasks[number - 1 :: of], self.refused[number - 1 :: of])


def discover(paths: Sequence[Path]) -> Found | NoSuchPath:
    """The tasks in files and folders. Hidden folders, ``__pycache__`` and ``__init__.py`` are passed over."""
    files: dict[Path, tuple[TaskFile, str]] = {}
    for path in paths:
        if not path.is_dir() and not (path.is_file() and path.suffix == ".py"):
            return NoSuchPath(path)
        for file, name in _below(path):
            found = TaskFile(name, file.resolve().parent.name, file)
            files.setdefault(file.resolve(), (found, path.resolve().name))
    refused: list[RefusedFile] = []
    tasks: list[TaskFile] = []
    for task in _distinct(list(files.values())):
        reason = why_no_task(task.path)
        if reason:
            refused.append(RefusedFile(task.name, task.path, reason))
        else:
            tasks.append(task)
    return Found(
        tuple(sorted(tasks, key=lambda task: natural(task.name))),
        tuple(sorted(refused, key=lambda file: natural(file.name))),
    )


def _below(path: Path) -> Iterator[tuple[Path, str]]:
    if path.is_file():
        yield path, path.stem
        return
    for file in sorted(path.rglob("*.py")):
        inner = file.relative_to(path)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inner.parts)
        if not hidden and file.name != "__init__.py":
            yield file, inner.with_suffix("").as_posix()


def _distinct(files: Sequence[tuple[TaskFile, str]]) -> list[TaskFile]:
    """Names that occur twice begin with their given folder's name; where that does not help, with a number."""
    counts = Counter(task.name for task, _ in files)
    named = [
        replace(task, name=f"{root}/{task.name}") if counts[task.name] > 1 else task
        for task, root in files
    ]
    seen: Counter[str] = Counter()
    found = []
    for task in named:
        seen[task.name] += 1
        again = f"-{seen[task.name]}" if seen[task.name] > 1 else ""
        found.append(replace(task, name=task.name + again))
    return found


def natural(name: str) -> tuple[str | int, ...]:
    """A sort key by which 2_b comes before 10_a."""
    parts = re.split(r"(\d+)", name)  # text and numbers in turn
    return tuple(int(part) if number % 2 else part for number, part in enumerate(parts))


def why_no_task(path: Path) -> str:
    """Why a file is no task, from its text alone; "" if it looks like one."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        return f"cannot be read: {type(error).__name__}: {error}"
    missing = [name for name in NEEDED if name not in set(_bound(tree.body))]
    return f"it has no {', no '.join(missing)}" if missing else ""


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that statements bind in their module."""
    for statement in body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef():
                yield statement.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in statement.names)
            case ast.Assign() | ast.AnnAssign():
                names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
                yield from (name.id for name in names if isinstance(name.ctx, ast.Store))
            case ast.If() | ast.Try() | ast.With():
                yield from _bound(statement.body)
                yield from _bound(getattr(statement, "orelse", []))
