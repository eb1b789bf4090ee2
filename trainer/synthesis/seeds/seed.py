"""A seed: one operator or layer, and how to build and call it."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = {
    "rows": 2,
    "tokens": 3,
    "line": 3,
    "image": 4,
    "volume": 5,
    "indices": 2,
}
"""What a value is, by the number of its dimensions.

rows: [N, D]. tokens: [B, T, D]. line: [B, C, L]. image: [B, C, H, W]. volume: [B, C, Z, H, W]. indices: [B, T], whole
numbers that look rows of a table up.
"""


@dataclass(frozen=True)
class Seed:
    """An operator of torch.

    name: as a task's ``ops`` has it, such as ``nn.Conv2d`` or ``torch.softmax``. kinds: the values that it takes (see
    `KINDS`). arguments: those of the constructor where it is a module, of the call elsewhere, with ``{x}`` for the
    value so far, ``{a}`` and ``{b}`` for further tensors, and names of sizes (see `compose.sizes`). extras: the shapes
    of ``a`` and ``b``, as names of sizes or ``same``.
    """

    name: str
    family: str
    kinds: tuple[str, ...]
    arguments: str
    extras: tuple[tuple[str, str], ...] = ()

    @property
    def is_module(self) -> bool:
        """Whether it is built once and then called."""
        return self.name.startswith("nn.")


@dataclass(frozen=True)
class LayerSeed:
    """A layer of transformers.

    name: its model and class, ``llama.LlamaMLP``. config: the class of its configuration, "" where it takes none.
    options: letters of `transformers_seeds.OPTIONS`, which the configuration is given. arguments: of the constructor.
    shape: of its input, in sizes' names. takes_first: whether the output is the first of several. keeps_shape: whether
    it has the shape of the input.
    """

    name: str
    family: str
    config: str
    options: tuple[str, ...]
    arguments: str
    shape: tuple[str, ...]
    takes_first: bool
    keeps_shape: bool

    @property
    def model(self) -> str:
        """The folder of the model."""
        return self.name.partition(".")[0]

    @property
    def layer(self) -> str:
        """The class."""
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class Missing:
    """A seed that the installed version does not have, and why."""

    name: str
    reason: str
