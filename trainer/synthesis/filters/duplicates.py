"""Which tasks are there already: the same text, the same graph, or one of both with other sizes."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.synthesis.filters.decide import Dropped
from trainer.synthesis.filters.similarity import TOO_ALIKE, Program, most_alike


@dataclass
class Known:
    """What has been kept. Ask in the order of seed numbers: the first of several alike is kept.

    programs: see `similarity.programs_in`.
    """

    programs: Sequence[Program] = ()
    seen: dict[str, str] = field(default_factory=dict)

    def why_dropped(
        self, id: str, code: str, facts: Mapping[str, Any], training: bool
    ) -> Dropped | None:
        """Why a task is dropped; None if it is new, and then it is known from here on."""
        keys = {
            f"code {_digest(code)}": "exact duplicate",
            f"graph {facts['graphs']} {training}": "duplicate by graph",
            f"structure {facts['structures']} {training}": "near duplicate",
            # Inductor's passes go by sizes, so the same program may have several structures.
            f"text {_digest(without_numbers(code))}": "near duplicate",
        }
        for key, name in keys.items():
            if key in self.seen:
                return Dropped(name, f"like {self.seen[key]}")
        alike = most_alike(code, self.programs)
        if alike is not None:
            return Dropped("excluded program", f"more than {TOO_ALIKE} like {alike.name}")
        self.seen |= dict.fromkeys(keys, id)
        return None


def without_numbers(code: str) -> str:
    """A program's syntax tree with 0 for each number, whatever its sign; the text itself where it is no Python."""
    try:
        return ast.dump(_WithoutNumbers().visit(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code


class _WithoutNumbers(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(0) if type(node.value) in (int, float, complex) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        is_number = isinstance(node.operand, ast.Constant) and node.operand.value == 0
        return node.operand if is_number and isinstance(node.op, ast.USub) else node


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
