"""Which families of tasks a training is kept from: those that it is tested on, and those that choose its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HeldOut:
    """A share of families, and which one of such shares. Trainings with parts 0, 1 ... are kept from different
    families: five with a share of 0.2 are together tested on all of them.

    Raises ValueError where there is no such part.
    """

    share: float
    part: int = 0

    def __post_init__(self) -> None:
        fits = 0.0 <= self.share <= 1.0 and self.part >= 0
        if not fits or (self.part and self.share * (self.part + 1) > 1.0 + 1e-9):
            raise ValueError(
                f"there is no part {self.part} of families in shares of {self.share:g}"
            )

    def families(self, names: Sequence[str]) -> frozenset[str]:
        """About this share of them, at least one where the share is above 0.

        Which ones hangs on each one's name alone: a family that is held out of one set of tasks is held out of all
        others, but for sets of so few families that none would be.
        """
        low, high = self.share * self.part, self.share * (self.part + 1)
        held = frozenset(name for name in names if low <= _place(name) < high)
        nearest = min(names, key=lambda name: (_place(name) - low) % 1.0, default="")
        return held or (frozenset({nearest}) if self.share > 0 and names else held)

    def covers(self, other: HeldOut) -> bool:
        """Whether all families that another one holds out are held out here too, as far as names say."""
        ends = self.share * (self.part + 1), other.share * (other.part + 1)
        return self.share * self.part <= other.share * other.part and ends[1] <= ends[0]

    def to_card(self) -> dict[str, Any]:
        """As a policy's card has it."""
        return {"held_out": self.share, "held_out_part": self.part}


def to_validate(names: Sequence[str], share: float) -> frozenset[str]:
    """Of the families that are not held out about this share, at least one where the share is above 0.

    Which ones hangs on each one's name alone, by another hash than `HeldOut` has: its parts are ranges, so that a range
    of the same one would be a later part. So every part leaves an even share of its rest to validate on, and a family
    that is validated beside one part is so beside each that does not hold it out.
    """
    if not share or not names:
        return frozenset()
    places = {name: _place(f"validated/{name}") for name in names}
    return frozenset(n for n in names if places[n] < share) or frozenset(
        {min(names, key=places.__getitem__)}
    )


def in_all(several: Sequence[HeldOut]) -> HeldOut:
    """What all of these hold out; a share of 0 where that is no such part."""
    if len(set(several)) == 1:
        return several[0]
    if any(one.part for one in several):
        return HeldOut(0.0)
    return HeldOut(min(one.share for one in several))


def of_card(card: Mapping[str, Any]) -> HeldOut | None:
    """What a policy was kept from; None where its card does not say, or it was kept from nothing."""
    share, part = card.get("held_out"), card.get("held_out_part", 0)
    if not isinstance(share, int | float) or not share or not isinstance(part, int):
        return None
    try:
        return HeldOut(float(share), part)
    except ValueError:
        return None


def _place(family: str) -> float:
    """In [0, 1), evenly, and having nothing to do with what it is called after."""
    return int.from_bytes(hashlib.sha256(family.encode()).digest()[:6], "big") / 2**48
