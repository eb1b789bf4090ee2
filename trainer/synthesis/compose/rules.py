"""The rule-based composer: a seed number decides everything, so that the same number gives the same task.

Families are drawn first and operators within them, so that no family is large because it has many operators. The shares
are our own choice; the paper's set has two operators in 84 % of its rows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeVar

from trainer.synthesis.compose.layers import layer_source
from trainer.synthesis.compose.render import Source, Step, rendered, steps_source
from trainer.synthesis.compose.sizes import first_shape, next_kind
from trainer.synthesis.compose.stage import Extra, Stage, stage_of
from trainer.synthesis.compose.task import Composed, NotComposed, Wishes
from trainer.synthesis.seeds.seed import Seed
from trainer.synthesis.seeds.torch_seeds import torch_seeds
from trainer.synthesis.seeds.transformers_seeds import layer_seeds

LENGTHS = {1: 0.12, 2: 0.27, 3: 0.27, 4: 0.20, 5: 0.14}
"""Of tasks of torch's operators, the share with so many."""
LAYERS = 0.10
"""Of all tasks, the share with a layer of transformers; half of these have a tail of torch's operators."""
TRAINING = 0.2
SMALL = 0.08
KINDS = {
    "rows": 0.24,
    "tokens": 0.28,
    "line": 0.12,
    "image": 0.22,
    "volume": 0.08,
    "indices": 0.06,
}
DTYPES = {
    "cuda": {"float32": 0.5, "bfloat16": 0.28, "float16": 0.22},
    "cpu": {"float32": 0.85, "bfloat16": 0.1, "float16": 0.05},
}
ELEMENTS = {"cuda": (20, 25), "cpu": (14, 20)}
"""Of the first value, as powers of two."""
SMALL_ELEMENTS = (10, 16)
Key = TypeVar("Key")
TRIES = 40
ANYWHERE = 0.6
"""How often, against 1, a family is drawn that takes values of all kinds."""
GROWTH, SHRINKING = 16, 1 / 512
"""A step's result has at most so many times the elements of the first value, and at least so many."""


class RuleComposer:
    """Composes for one device."""

    name = "rules"
    trusted = True
    scales = True

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes

    def compose(self, seed: int, rung: int) -> Composed | NotComposed:
        """See `Composer.compose`."""
        rng = random.Random(f"cuda_agent {seed}")
        device = self._wishes.device
        training, small = rng.random() < TRAINING, rng.random() < SMALL
        dtype = _drawn(DTYPES[device], rng)
        low, high = SMALL_ELEMENTS if small else ELEMENTS[device]
        elements = max(64, int(2 ** (rng.uniform(low, high) + rung)))
        wants_layer = rng.random() < LAYERS
        # What follows may draw more or fewer numbers on another rung; the choices above stay.
        inner = random.Random(f"cuda_agent {seed} inner")
        if wants_layer and layer_seeds()[0]:
            return self._with_layer(seed, rung, inner, elements, dtype, training, small)
        count = _drawn(LENGTHS, inner)
        kind = _drawn(KINDS, inner)
        shape = first_shape(kind, elements, inner)
        steps = chain(kind, shape, count, inner, training)
        if len(steps) < count:
            return NotComposed(f"only {len(steps)} of {count} operators fit")
        first = Extra(shape, _rows(steps[0].stage) if kind == "indices" else 0, True)
        return self._made(steps_source(first, steps), steps, (), dtype, training, small, seed, rung)

    def _with_layer(
        self,
        seed: int,
        rung: int,
        rng: random.Random,
        elements: int,
        dtype: str,
        training: bool,
        small: bool,
    ) -> Composed | NotComposed:
        layer = rng.choice(layer_seeds()[0])
        source, shape, result = layer_source(layer, elements, rng)
        tail = rng.choice((0, 0, 1, 2))
        steps: list[Step] = []
        if tail and result is not None:
            kind = next_kind("line" if len(result) > 3 else "tokens", result)
            steps = chain(kind, result, tail, rng, training) if kind else []
            # Steps' own inputs follow those of the layer.
            more = steps_source(Extra(shape, 0, True), steps)
            source = Source(
                source.imports,
                (*source.built, *more.built),
                (*source.lines, *more.lines),
                (*source.names, *more.names[1:]),
                (*source.inputs, *more.inputs[1:]),
            )
        ops = (f"transformers.{layer.name}",)
        return self._made(source, steps, ops, dtype, training, small, seed, rung, (layer.family,))

    def _made(
        self,
        source: Source,
        steps: Sequence[Step],
        before: tuple[str, ...],
        dtype: str,
        training: bool,
        small: bool,
        seed: int,
        rung: int,
        families: tuple[str, ...] = (),
    ) -> Composed:
        ops = (*before, *(step.stage.op for step in steps))
        joined = {step.joined for step in steps} - {"chain"}
        several = ["several inputs"] if len(source.names) > 1 else []
        found = (*families, *(step.stage.seed.family for step in steps))
        return Composed(
            code=rendered(source, dtype, training),
            ops=ops,
            families=tuple(dict.fromkeys(found)),
            source=f"{'transformers' if before else 'torch'}#{len(ops)}",
            dtype=dtype,
            training=training,
            pattern=", ".join([*sorted(joined), *several]) or "sequence",
            small=small,
            provenance={"composer": self.name, "seed": seed, "rung": rung},
            exempt=EXEMPT if before else (),
        )


EXEMPT = tuple(
    f".{name}.bias"
    for name in ("k_proj", "key", "k", "key_proj", "k_lin", "linear_k", "to_k", "attn_k", "wk")
)
"""A bias of keys adds the same number to all scores of a query."""


def chain(
    kind: str, shape: tuple[int, ...], count: int, rng: random.Random, training: bool
) -> list[Step]:
    """Up to so many steps that connect. training: no whole numbers come out, which have no gradient."""
    steps: list[Step] = []
    base = 1
    for size in shape:
        base *= size
    if kind == "indices":
        base *= 128
    while len(steps) < count and kind:
        step = _step(kind, shape, base, rng, len(steps) + 1 == count, training)
        if step is None:
            break
        steps.append(step)
        shape = step.stage.shape
        kind = "" if step.stage.whole else next_kind(kind, shape)
    return steps


def _step(
    kind: str,
    shape: tuple[int, ...],
    base: int,
    rng: random.Random,
    last: bool,
    training: bool,
) -> Step | None:
    families = seeds_by_family()[kind]
    for _ in range(TRIES):
        names = sorted(families)
        family = rng.choices(names, [_weight(families[name]) for name in names])[0]
        seed = rng.choice(families[family])
        stage = stage_of(seed, kind, shape, rng)
        if stage is None or (stage.whole and (training or not last)):
            continue
        size = 1
        for length in stage.shape:
            size *= length
        ends = stage.whole or not next_kind(kind, stage.shape)
        if size > GROWTH * base or (not last and (ends or size < SHRINKING * base)):
            continue
        alike = stage.shape == shape and kind != "indices" and not stage.whole
        joined = _drawn({"chain": 0.7, "residual": 0.17, "gate": 0.13}, rng) if alike else "chain"
        return Step(stage, joined)
    return None


def _weight(seeds: Sequence[Seed]) -> float:
    """Operators that go with everything would be in most tasks otherwise."""
    return ANYWHERE if any(len(seed.kinds) >= 5 for seed in seeds) else 1.0


def _rows(stage: Stage) -> int:
    """How many rows the table of an embedding has."""
    for _, extra in stage.extras:
        return extra.shape[0]
    return int(stage.build.partition("(")[2].partition(",")[0])


@cache
def seeds_by_family() -> Mapping[str, Mapping[str, tuple[Seed, ...]]]:
    """Kind, family, seeds."""
    found: dict[str, dict[str, list[Seed]]] = {}
    for seed in torch_seeds()[0]:
        for kind in seed.kinds:
            found.setdefault(kind, {}).setdefault(seed.family, []).append(seed)
    return {k: {f: tuple(s) for f, s in families.items()} for k, families in found.items()}


def _drawn(weights: Mapping[Key, float], rng: random.Random) -> Key:
    return rng.choices(list(weights), list(weights.values()))[0]
