"""Torch's seeds: the table read, and checked against the installed version."""

from __future__ import annotations

from functools import cache
from typing import Any

from trainer.synthesis.seeds.operators import LETTERS, TABLE
from trainer.synthesis.seeds.seed import Missing, Seed


def parse(table: str) -> tuple[Seed, ...]:
    """The seeds of a table. Raises ValueError on a line that is none."""
    family, found = "", []
    for line in filter(None, map(str.strip, table.splitlines())):
        if line.startswith("[") and line.endswith("]"):
            family = line[1:-1]
            continue
        kinds, name, arguments, extras = ([*map(str.strip, line.split("|")), ""])[:4]
        letters = "rtliv" if kinds == "*" else kinds
        shapes = tuple(
            (part.partition("=")[0].strip(), part.partition("=")[2].strip())
            for part in filter(None, map(str.strip, extras.split(";")))
        )
        found.append(
            Seed(name, family, tuple(LETTERS[letter] for letter in letters), arguments, shapes)
        )
    return tuple(found)


def split_name(seed: Seed) -> tuple[str, bool]:
    """The operator's name, and whether a module is called with its extras as well (a plus in the table)."""
    name, plus, _ = seed.name.partition(" +")
    return name, bool(plus)


def resolve(name: str) -> Any | None:
    """What a name such as ``F.gelu`` or ``torch.linalg.vector_norm`` stands for; None where there is no such thing."""
    import torch
    from torch import nn

    roots: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional}
    root, *rest = name.split(".")
    found = roots.get(root)
    for part in rest:
        found = getattr(found, part, None)
    return found


@cache
def torch_seeds() -> tuple[tuple[Seed, ...], tuple[Missing, ...]]:
    """The seeds that the installed torch has, and those that it lacks."""
    import torch

    there, missing = [], []
    for seed in parse(TABLE):
        name = split_name(seed)[0]
        if callable(resolve(name)):
            there.append(seed)
        else:
            missing.append(Missing(name, f"torch {torch.__version__} has no {name}"))
    return tuple(there), tuple(missing)
