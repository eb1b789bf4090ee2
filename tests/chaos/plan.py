"""What happens in a round, drawn from its seed alone."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

DAY = 86400.0
WHOLE_EVERY = 100
"""Of so many rounds one has the real judge, whose workers take long to start."""
MODELS = ("exp", "neg exp", "sin")
"""A kernel is found for the first two, nothing for the third."""
WINNERS = ("exp", "neg exp")


@dataclass(frozen=True)
class User:
    """A user's process. mode: of the search, or "warm". clock: by how many seconds its clock, and those of its
    children, is wrong; after `jump_after_s` seconds it is wrong by `jump` more."""

    mode: str
    acceptance: str
    models: tuple[str, ...]
    start_after_s: float = 0.0
    clock: float = 0.0
    jump: float = 0.0
    jump_after_s: float = 0.0


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, `delay_s` after a process of the kind `target` was there ("" for the round's begin).

    do: "SIGKILL" and the like for a signal; "full", "read-only" for all folders; "small files" for one process.
    after: another kind of process, which must be there first.
    """

    do: str
    target: str
    delay_s: float
    lasts_s: float = 0.0
    after: str = ""


@dataclass(frozen=True)
class Plan:
    """A round: its users, and what goes wrong. whole: with the real judge and the real measurement. search_s: seconds
    that a search takes at least. forgets: what is compiled without its kernels stays in torch's caches as if its search
    were over, which is wrong and must be seen."""

    seed: int
    users: tuple[User, ...]
    faults: tuple[Fault, ...]
    whole: bool = False
    search_s: float = 0.0
    forgets: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


INTERRUPTED = Plan(
    1_000_000,
    (User("search", "trust", ("exp",)),),
    (Fault("SIGINT", "user", 1.0, after="search"),),
    search_s=5.0,
)
"""A round in which a search is surely cut short, and nothing else changes the cache: a graph that torch's caches then
have without its kernels never gets any."""

KILLS = (
    ("SIGKILL", "search"),
    ("SIGTERM", "search"),
    ("SIGKILL", "acceptance"),
    ("SIGTERM", "acceptance"),
    ("SIGKILL", "compiler"),
    ("SIGTERM", "compiler"),
    ("SIGKILL", "user"),
    ("SIGTERM", "user"),
    ("SIGINT", "user"),
    ("SIGINT", "user"),
)
WHOLE_KILLS = (("SIGKILL", "fork server"), ("SIGKILL", "worker"), ("SIGTERM", "worker"))
FOLDERS = (("full", ""), ("read-only", ""), ("small files", "search"), ("small files", "user"))


def plan_of(seed: int) -> Plan:
    """The round of a seed."""
    draw = random.Random(seed)
    whole = seed % WHOLE_EVERY == WHOLE_EVERY - 1
    count = 2 if whole else draw.choices((1, 2, 3, 4, 8), (40, 30, 16, 10, 4))[0]
    users = tuple(_user(draw, whole) for _ in range(count))
    kinds = (*KILLS, *(WHOLE_KILLS * 2 if whole else FOLDERS))
    if all(user.acceptance == "trust" for user in users):
        kinds = tuple(kind for kind in kinds if kind[1] != "acceptance")
    faults = tuple(_fault(draw, kinds, whole) for _ in range(draw.choice((1, 1, 2, 3, 4))))
    return Plan(seed, users, faults, whole)


def _user(draw: random.Random, whole: bool) -> User:
    mode = draw.choices(("search", "background", "warm"), (60, 25, 15))[0]
    models = tuple(draw.sample(MODELS, draw.choice((1, 1, 2, 3))))
    jumps = draw.random() < 0.25
    wrong = (-3600.0, 3600.0, -10 * DAY, 10 * DAY, 3650 * DAY)
    return User(
        mode,
        draw.choice(("measure", "trust")),
        models[:1] if whole else models,
        round(draw.choice((0.0, draw.uniform(0.0, 1.5))), 2),
        draw.choice(wrong) if jumps else 0.0,
        draw.choice(wrong) if jumps else 0.0,
        round(draw.uniform(0.1, 3.0), 2),
    )


def _fault(draw: random.Random, kinds: tuple[tuple[str, str], ...], whole: bool) -> Fault:
    do, target = draw.choice(kinds)
    delay = draw.uniform(0.0, 15.0 if whole else 1.2)
    if not target:
        delay = draw.uniform(0.0, 2.5)
    return Fault(do, target, round(delay, 3), round(draw.uniform(0.2, 2.0), 2))
