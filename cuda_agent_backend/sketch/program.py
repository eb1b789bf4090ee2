"""A candidate's source in parts, for those who put several together."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.plan import Plan


@dataclass(frozen=True)
class Program:
    """preludes: texts that other programs share, each once and in order. functions: what is this one's own."""

    preludes: tuple[str, ...]
    functions: tuple[str, ...]
    plan: Plan

    @property
    def source(self) -> str:
        """All of it."""
        return "\n".join((*self.preludes, *self.functions, ""))
