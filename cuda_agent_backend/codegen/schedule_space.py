"""The schedules that a task could have, told from those that its sketches propose.

A sketch proposes a few schedules. Their parameters, with the values seen and those next to them, span a space: the
proposals first, then what differs from one of them in one parameter or takes each kernel from another. Whether a
schedule of it fits is for the sketch to say (`api.generate` answers `NotCovered`); all that
is known of a parameter here is what its family's dataclass says of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.ir.parameters import OF_ANY, meanings
from cuda_agent_backend.codegen.ir.schedule import MAX_PARAMETER, Parameter, Schedule
from cuda_agent_backend.codegen.registry import FAMILIES

_MEANINGS = [
    (name, meaning)
    for family in itertools.chain.from_iterable(FAMILIES.values())
    for name, meaning in meanings(family.params).items()
]
AS_PROPOSED = {*OF_ANY, *(name for name, meaning in _MEANINGS if meaning.fixed)}
"""Parameters of which only the values proposed make sense."""
SWITCHES = {name for name, meaning in _MEANINGS if meaning.flips}
"""Parameters of which zero and one are all the values that there are."""
MOST = 256
"""Schedules of a space that anybody looks at."""

Kernels = tuple[tuple[tuple[str, Parameter], ...], ...]


@dataclass(frozen=True)
class Dimension:
    """One parameter of one kernel: the values that proposals give it, and those next to them."""

    kernel: int
    name: str
    proposed: tuple[Parameter, ...]
    beside: tuple[Parameter, ...] = ()

    @property
    def values(self) -> tuple[Parameter, ...]:
        """All of them, in order: numbers by size, then words."""
        return tuple(sorted((*self.proposed, *self.beside), key=_order))


@dataclass(frozen=True)
class Space:
    """The proposals, best guess first, and the dimensions that each kind of them has.

    A kind is what proposals with the same kernels, parameters and words (a sketch's name, a rule, a way to go) share.
    """

    proposals: tuple[Schedule, ...]
    dimensions: tuple[tuple[Dimension, ...], ...]

    def describe(self) -> list[list[dict[str, list[Parameter]]]]:
        """For each kind and kernel the values by parameter, as JSON values."""
        return [_by_kernel(kind) for kind in self.dimensions]

    def schedules(self, most: int = MOST) -> list[Schedule]:
        """Up to ``most`` schedules: the proposals, then mixtures of them, then steps beside them, nearest first."""
        found = dict.fromkeys(self.proposals)
        for made in itertools.chain(self._mixed(), self._beside()):
            if len(found) >= most:
                break
            found.setdefault(made)
        return list(found)[:most]

    def _mixed(self) -> Iterator[Schedule]:
        """Kernels of the first proposal's kind, each as in another proposal: those that hardly interact add up."""
        for kind in _kinds(self.proposals):
            choices = [list(dict.fromkeys(k)) for k in zip(*(s.kernels for s in kind), strict=True)]
            if sum(len(c) > 1 for c in choices) > 1:
                places = itertools.product(*(range(len(c)) for c in choices))
                for place in sorted(itertools.islice(places, 16 * MOST), key=sum):
                    yield Schedule(tuple(c[i] for c, i in zip(choices, place, strict=True)))

    def _beside(self) -> Iterator[Schedule]:
        """Every proposal with one parameter at another of its values, the best guess's neighbours first."""
        of = {s: kind for kind, group in enumerate(_kinds(self.proposals)) for s in group}
        for proposal in self.proposals:
            for dimension in self.dimensions[of[proposal]]:
                for value in dimension.values:
                    yield _with(proposal, dimension, value)


def space_of(proposals: Sequence[Schedule]) -> Space:
    """The space around proposals (best guess first)."""
    groups = _kinds(proposals)
    return Space(tuple(dict.fromkeys(proposals)), tuple(_dimensions(g) for g in groups))


def kind_of(schedule: Schedule) -> tuple[tuple[tuple[str, str], ...], ...]:
    """What proposals of one kind share: parameters of each kernel, with the words among their values."""
    return tuple(
        tuple((name, value if isinstance(value, str) else "") for name, value in kernel)
        for kernel in schedule.kernels
    )


def _kinds(proposals: Sequence[Schedule]) -> list[list[Schedule]]:
    groups: dict[object, list[Schedule]] = {}
    for schedule in dict.fromkeys(proposals):
        groups.setdefault(kind_of(schedule), []).append(schedule)
    return list(groups.values())


def _dimensions(group: Sequence[Schedule]) -> tuple[Dimension, ...]:
    found = []
    for number, kernel in enumerate(group[0].kernels):
        for name, _ in kernel:
            seen = tuple(dict.fromkeys(s.parameters(number)[name] for s in group))
            found.append(Dimension(number, name, seen, _next_to(name, seen)))
    return tuple(found)


def _next_to(name: str, seen: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Half and double of what was seen. Zero and one alone are a switch, of which the other side is next."""
    numbers = [value for value in seen if isinstance(value, int)]
    if name in AS_PROPOSED or not numbers:
        return ()
    if max(numbers) <= 1:
        return tuple({0, 1} - set(numbers)) if name in SWITCHES else ()
    near = [v for n in numbers if n > 1 for v in (n // 2, 2 * n) if v <= MAX_PARAMETER]
    return tuple(v for v in dict.fromkeys(near) if v not in seen)


def _with(schedule: Schedule, dimension: Dimension, value: Parameter) -> Schedule:
    kernels = [dict(kernel) for kernel in schedule.kernels]
    kernels[dimension.kernel][dimension.name] = value
    return Schedule.of(*kernels)


def _by_kernel(kind: Sequence[Dimension]) -> list[dict[str, list[Parameter]]]:
    kernels: dict[int, dict[str, list[Parameter]]] = {}
    for dimension in kind:
        kernels.setdefault(dimension.kernel, {})[dimension.name] = list(dimension.values)
    return [kernels[number] for number in sorted(kernels)]


def _order(value: Parameter) -> tuple[bool, int, str]:
    return (isinstance(value, str), value if isinstance(value, int) else 0, str(value))
