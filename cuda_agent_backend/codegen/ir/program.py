"""A candidate's source in parts, for those who put several together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sandbox.plan.plan import Launch, Plan, TensorMap
from sandbox.plan.steps import Argument


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


def preludes_of(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The preludes of several programs, each text once; definitions, which come first in each, before any other."""
    definitions = dict.fromkeys(own[0] for own in parts)
    texts = dict.fromkeys(text for own in parts for text in own[1:])
    return (*filter(None, definitions), *texts)


def renamed(step: Launch, names: Mapping[str, str]) -> Launch:
    """A launch with other names for the buffers that it is given."""

    def named(argument: Argument) -> Argument:
        if isinstance(argument, TensorMap):
            return replace(argument, buffer=names[argument.buffer])
        return names[argument] if isinstance(argument, str) else argument

    return replace(step, args=tuple(map(named, step.args)))
