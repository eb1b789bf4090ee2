"""How alike the Model classes of two programs are, from their syntax trees; names of variables and numbers apart."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

TOO_ALIKE = 0.9


@dataclass(frozen=True)
class Program:
    """A program to stay away from."""

    name: str
    tokens: tuple[str, ...]


def tokens_of(code: str) -> tuple[str, ...]:
    """The kinds of the nodes of the class ``Model``, with the names of attributes that are called. () if there is no
    such class or the text is no Python."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"]
    if not found:
        return ()
    return tuple(
        _token(node) for node in ast.walk(found[0]) if not isinstance(node, ast.expr_context)
    )


def _token(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute) and not _of_self(node):
        return node.attr
    return type(node).__name__


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def programs_in(folders: Sequence[Path]) -> tuple[Program, ...]:
    """All Python files below the folders that hold a Model; none is run."""
    found = []
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            tokens = tokens_of(file.read_text(encoding="utf-8", errors="replace"))
            if tokens:
                found.append(Program(str(file.relative_to(folder)), tokens))
    return tuple(found)


def similarity(one: Sequence[str], other: Sequence[str], least: float = 0.0) -> float:
    """From 0 to 1. Below ``least`` a number that is too high may come back, which is cheaper."""
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for bound in (matcher.real_quick_ratio(), matcher.quick_ratio()):
        if bound <= least:
            return min(bound, least)
    return matcher.ratio()


def most_alike(code: str, programs: Sequence[Program]) -> Program | None:
    """The first program that a task is too much like."""
    tokens = tokens_of(code)
    for program in programs:
        if similarity(tokens, program.tokens, TOO_ALIKE) > TOO_ALIKE:
            return program
    return None
