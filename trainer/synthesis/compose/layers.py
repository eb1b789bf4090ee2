"""The source of a layer of transformers, built from a small configuration."""

from __future__ import annotations

import random

from trainer.synthesis.compose.render import Source, randoms
from trainer.synthesis.compose.stage import Extra
from trainer.synthesis.seeds.seed import LayerSeed
from trainer.synthesis.seeds.transformers_seeds import OPTIONS

WIDTHS = ((64, 4), (128, 4), (192, 6), (256, 8), (384, 6), (512, 8), (768, 12))
"""Width and heads."""
LENGTHS = (16, 33, 64, 77, 128, 197, 256)


def layer_source(
    seed: LayerSeed, elements: int, rng: random.Random
) -> tuple[Source, tuple[int, ...], tuple[int, ...] | None]:
    """The parts of a file, the input's shape of about so many elements, and the result's where it is known."""
    width, heads = rng.choice(WIDTHS)
    sizes = {
        "H": width,
        "A": heads,
        "I": width * rng.choice((2, 3, 4)),
        "E": width // heads,
        "V": rng.choice((1000, 4001)),
        "T": rng.choice(LENGTHS),
        "S": rng.choice((14, 16, 28)),
        "2": 2,
        "4": 4,
    }
    inner = 1
    for name in seed.shape[1:]:
        inner *= sizes[name]
    shape = (max(1, elements // inner), *(sizes[name] for name in seed.shape[1:]))
    base = f"transformers.models.{seed.model}"
    imports = [f"from {base}.modeling_{seed.model} import {seed.layer}"]
    built = []
    if seed.config:
        imports.insert(0, f"from {base}.configuration_{seed.model} import {seed.config}")
        pairs = (OPTIONS[letter] for letter in seed.options)
        built += [f"config = {seed.config}("]
        built += [f"    {name}={sizes[size]}," for name, size in pairs]
        built += [")", 'config._attn_implementation = "sdpa"']
    arguments = seed.arguments.format(H=width, I=sizes["I"])
    built += [
        f"self.layer = {seed.layer}({arguments})",
        "for parameter in self.layer.parameters():",
        "    if parameter.dim() > 1:",
        "        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)",
    ]
    call = "self.layer(x)[0]" if seed.takes_first else "self.layer(x)"
    source = Source(
        tuple(imports), tuple(built), (f"x = {call}",), ("x",), (randoms(Extra(shape, 0, True)),)
    )
    return source, shape, shape if seed.keeps_shape else None
