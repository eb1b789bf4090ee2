"""Layers of transformers: the table read, and checked against the installed version without importing its models."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from trainer.synthesis.seeds.layers import TABLE
from trainer.synthesis.seeds.seed import LayerSeed, Missing

OPTIONS = {
    "h": ("hidden_size", "H"),
    "i": ("intermediate_size", "I"),
    "a": ("num_attention_heads", "A"),
    "k": ("num_key_value_heads", "A"),
    "l": ("num_hidden_layers", "2"),
    "e": ("head_dim", "E"),
    "v": ("vocab_size", "V"),
    "d": ("d_model", "H"),
    "n": ("n_embd", "H"),
    "N": ("n_head", "A"),
    "I": ("n_inner", "I"),
    "f": ("d_ff", "I"),
    "F": ("ffn_dim", "I"),
    "x": ("encoder_ffn_dim", "I"),
    "X": ("decoder_ffn_dim", "I"),
    "y": ("encoder_attention_heads", "A"),
    "Y": ("decoder_attention_heads", "A"),
    "H": ("num_heads", "A"),
    "D": ("dim", "H"),
    "g": ("hidden_dim", "I"),
    "G": ("n_heads", "A"),
    "m": ("moe_intermediate_size", "I"),
    "t": ("num_experts", "4"),
    "T": ("num_local_experts", "4"),
    "p": ("num_experts_per_tok", "2"),
    "b": ("embedding_size", "H"),
    "q": ("d_kv", "E"),
    "L": ("n_layer", "2"),
    "M": ("n_layers", "2"),
    "P": ("num_layers", "2"),
}
"""Letters of the table: an option of a configuration and the size that it is given."""


def parse(table: str) -> tuple[LayerSeed, ...]:
    """The seeds of a table. Raises ValueError on a line that is none."""
    family, found = "", []
    for line in filter(None, map(str.strip, table.splitlines())):
        if line.startswith("["):
            family = f"layer: {line[1:-1]}"
            continue
        name, config, letters, arguments, shape, notes = map(str.strip, line.split("|"))
        sizes = tuple(shape.split(","))
        options = tuple(letters)
        first = "first" in notes
        same = "same" in notes
        found.append(LayerSeed(name, family, config, options, arguments, sizes, first, same))
    return tuple(found)


@cache
def layer_seeds() -> tuple[tuple[LayerSeed, ...], tuple[Missing, ...]]:
    """The seeds that the installed transformers has, and those that it lacks; all are lacking where it is not there."""
    there: list[LayerSeed] = []
    missing: list[Missing] = []
    package = importlib.util.find_spec("transformers")
    root = Path(package.origin).parent if package and package.origin else None
    for seed in parse(TABLE):
        reason = "transformers is not installed" if root is None else _lacking(root, seed)
        if reason:
            missing.append(Missing(seed.name, reason))
        else:
            there.append(seed)
    return tuple(there), tuple(missing)


def _lacking(root: Path, seed: LayerSeed) -> str:
    """Why a seed cannot be built, from the files' text; "" if it can."""
    folder = root / "models" / seed.model
    wanted = {f"modeling_{seed.model}.py": seed.layer}
    if seed.config:
        wanted[f"configuration_{seed.model}.py"] = seed.config
    for name, defined in wanted.items():
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except OSError:
            return f"there is no {seed.model}/{name}"
        if f"\nclass {defined}(" not in text:
            return f"{seed.model}/{name} has no {defined}"
    return ""
