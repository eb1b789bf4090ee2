"""The rivals there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from trainer.rivals.gaussian import Search
from trainer.rivals.nearest import Nearest
from trainer.rivals.network import NetworkRanker
from trainer.rivals.portfolio import Portfolio
from trainer.rivals.protocol import Rival
from trainer.rivals.ranker import RankedSearch, Ranker
from trainer.rivals.simple import InOrder, Uniform

TODAY, CHANCE = "search", "random"
AGAINST = (TODAY, CHANCE)
"""The rivals that the others are held against, table by table."""

RIVALS: dict[str, Callable[[], Rival]] = {
    CHANCE: Uniform,
    "order": InOrder,
    "portfolio": Portfolio,
    "nearest": Nearest,
    "search": Search,
    "search-warm": partial(Search, warm=True),
    "ranker": Ranker,
    "ranker-torch": NetworkRanker,
    "ranker-search": RankedSearch,
}
CONTROLS: dict[str, Callable[[], Rival]] = {
    "ranker-shuffled": partial(Ranker, shuffled=True),
    "search-blind": partial(Search, blind=True),
}
"""Rivals that must do badly, or something leaks."""

NEEDS = {"sklearn": ("search", "search-warm", "search-blind", "ranker-search"),
         "lightgbm": ("ranker", "ranker-search", "ranker-shuffled")}  # fmt: skip


def missing(names: list[str]) -> str:
    """Why some cannot play, in words; "" where all can."""
    every = RIVALS | CONTROLS
    unknown = [name for name in names if name not in every]
    if unknown:
        return f"no rival is called {', '.join(unknown)}; there are: {', '.join(every)}"
    absent = [
        package
        for package, of in NEEDS.items()
        if set(of) & set(names) and find_spec(package) is None
    ]
    return f'{", ".join(absent)}: pip install "cuda_agent[train]"' if absent else ""
