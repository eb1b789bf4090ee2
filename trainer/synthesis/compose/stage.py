"""One step of a task: source for the constructor and for the forward pass, and the shape that comes of it.

Shapes are solved by running the step on tensors of torch's meta device, which hold no numbers.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.synthesis.compose.sizes import sizes
from trainer.synthesis.seeds.seed import Seed
from trainer.synthesis.seeds.torch_seeds import split_name

FIRST = " [0]"
"""At the end of a line's arguments: the first of several results is taken."""


@dataclass(frozen=True)
class Extra:
    """A further tensor of a step. below: whole numbers below it; 0: numbers of a normal distribution."""

    shape: tuple[int, ...]
    below: int
    as_input: bool


@dataclass(frozen=True)
class Stage:
    """A step that works. build: the constructor's expression, "" for a function. call: that of the forward pass, with
    ``{x}``, ``{m}`` for the module and the names of extras. shape: of its result. whole: of whole numbers."""

    seed: Seed
    build: str
    call: str
    extras: tuple[tuple[str, Extra], ...]
    shape: tuple[int, ...]
    whole: bool

    @property
    def op(self) -> str:
        """The operator's name in a task's list."""
        return split_name(self.seed)[0]


def stage_of(seed: Seed, kind: str, shape: tuple[int, ...], rng: random.Random) -> Stage | None:
    """The step of a seed on such a value; None where it does not fit."""
    named = sizes(kind, shape, rng)
    extras = {name: _extra(text, shape, named, rng) for name, text in seed.extras}
    build, call = _sources(seed, shape, named)
    found = _try(build, call, kind, shape, extras, int(named["V"]))
    if found is None:
        return None
    result, whole = found
    return Stage(seed, build, call, tuple(extras.items()), result, whole)


def _extra(
    text: str, shape: tuple[int, ...], named: Mapping[str, int], rng: random.Random
) -> Extra:
    limit, colon, form = text.rpartition(":")
    below = named[limit] if colon else 0
    parts = form.split(",") if form != "same" else []
    made = tuple(named[part] if part in named else int(part) for part in parts) or shape
    from_outside = form == "same" or bool(below) or made[0] == shape[0] or rng.random() < 0.15
    return Extra(made, below, from_outside)


def _sources(seed: Seed, shape: tuple[int, ...], named: Mapping[str, int]) -> tuple[str, str]:
    name, called_with_extras = split_name(seed)
    arguments, first = seed.arguments.removesuffix(FIRST), seed.arguments.endswith(FIRST)
    known = {key: str(value) for key, value in named.items()}
    text = re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), arguments)
    # Sizes within a call that are written without braces are the shape's own.
    text = text.replace("(B, C,", f"({shape[0]}, {named['C']},")
    if not seed.is_module:
        return "", f"{name}({text})" + ("[0]" if first else "")
    given = ["{x}", *(f"{{{key}}}" for key, _ in seed.extras)] if called_with_extras else ["{x}"]
    if name == "nn.Bilinear":
        given = ["{x}", "{x}"]
    return f"{name}({text})", f"{{m}}({', '.join(given)})"


def _try(
    build: str,
    call: str,
    kind: str,
    shape: tuple[int, ...],
    extras: Mapping[str, Extra],
    rows: int,
) -> tuple[tuple[int, ...], bool] | None:
    """The result's shape and whether it holds whole numbers; None where torch refuses it."""
    import torch
    from torch import nn

    def tensor(shape: tuple[int, ...], below: int) -> torch.Tensor:
        dtype = torch.int64 if below else torch.float32
        return torch.empty(shape, dtype=dtype, device="meta")

    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional}
    names["x"] = tensor(shape, rows if kind == "indices" else 0)
    names |= {key: tensor(extra.shape, extra.below) for key, extra in extras.items()}
    filled = call.format(x="x", m="m", **{key: key for key in extras})
    try:
        with torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names["m"] = eval(build, names).eval() if build else None
            found = eval(filled, names)
    except Exception:  # whatever torch raises says that sizes do not fit
        return None
    if not isinstance(found, torch.Tensor) or not found.numel():
        return None
    floating = found.is_floating_point()
    if not floating and found.dtype != torch.int64:
        return None
    return tuple(found.shape), not floating
