"""Where an output is wrong, for whoever has to find out why. Feedback only: no verdict rests on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.accuracy.pieces import Piece

if TYPE_CHECKING:
    import torch

SHOWN = 4
RELATIVE, MULTIPLE = 4.0, 4.0
MOST_ELEMENTS = 1 << 24
"""Of larger outputs only the first ones are looked at."""


@dataclass(frozen=True)
class Place:
    """One element: its index, what the candidate has there, and what the oracle has."""

    index: tuple[int, ...]
    found: str
    wanted: str


@dataclass(frozen=True)
class Misses:
    """Elements of one output that are wrong by themselves: more than a few times eager's largest error and a few
    roundings away. count: of `elements` that were looked at. first: in the order of indices; worst: the largest error.
    """

    count: int
    elements: int
    first: tuple[Place, ...]
    worst: Place | None = None


def misses(found: torch.Tensor, eager: torch.Tensor, exact: Piece) -> Misses:
    """Compare one output with the oracle, as the oracle rounds to its dtype where it is not finite. exact: of all of
    the output, or of a part: no other is looked at. found may lie on another device."""
    import torch

    shape = tuple(found.shape)
    o = exact.oracle.reshape(-1)[:MOST_ELEMENTS]
    c, e = (exact.of(t).reshape(-1)[:MOST_ELEMENTS].to(o.device) for t in (found, eager))

    def place(at: int) -> tuple[int, ...]:
        return unravel(int(exact.places(torch.tensor([at]), shape)), shape)

    if not found.dtype.is_floating_point:
        return _told(c != e, None, c, e, place)
    c, e, o = c.double(), e.double(), o.double()
    eps = torch.finfo(found.dtype).eps
    fine = c.isfinite() & e.isfinite() & o.isfinite()
    own = torch.where(fine, (e - o).abs(), 0.0)
    error = torch.where(fine, (c - o).abs(), 0.0)
    allowed = MULTIPLE * float(own.max() if len(own) else 0.0) + RELATIVE * eps * o.abs()
    same = c.isnan() & e.isnan() | (c == e)
    return _told(
        torch.where(fine, error > allowed, ~same), error, c, torch.where(fine, o, e), place
    )


def _told(
    bad: torch.Tensor,
    error: torch.Tensor | None,
    found: torch.Tensor,
    wanted: torch.Tensor,
    index: Callable[[int], tuple[int, ...]],
) -> Misses:
    def place(at: int) -> Place:
        return Place(index(at), _text(found[at].item()), _text(wanted[at].item()))

    first = bad.nonzero().reshape(-1)[:SHOWN].tolist()
    worst = None
    if error is not None and len(error) and float(error.max()) > 0:
        worst = place(int(error.argmax()))
    return Misses(int(bad.sum()), len(bad), tuple(map(place, first)), worst)


def _text(value: bool | int | float) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def unravel(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of a position in the flattened tensor of a shape."""
    place: list[int] = []
    for size in reversed(shape):
        place.insert(0, position % size)
        position //= size
    return tuple(place)
