"""What is measured: a model in a dtype, inference or a training step, in a mode of `torch.compile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.whole_models.subject import Subject

DTYPES = {"cpu": ("float32",), "cuda": ("bfloat16", "float32")}
KINDS = ("inference", "training")
DEFAULT, AUTOTUNE = "default", "max-autotune"
MODES = (DEFAULT, AUTOTUNE, "max-autotune-no-cudagraphs")
"""CUDA graphs are on both sides in max-autotune, and on neither in the other two."""
CPU_KINDS = ("inference",)
LEFT_OUT = {
    ("mixture", "float32", AUTOTUNE): (
        "transformers multiplies experts in float32 by an operator that reads their sizes on the host, which no CUDA "
        "graph can hold, Inductor's neither"
    ),
}
"""By model, dtype and mode: what cannot be measured on a GPU, and why. `grouped_mm` is used for bfloat16 alone where a
model is compiled, see `_can_use_grouped_mm` in `transformers.integrations.moe`."""


@dataclass(frozen=True)
class Cell:
    """One comparison with Inductor in the same mode. model: a name in the registry of the target."""

    model: str
    dtype: str
    kind: str
    mode: str
    target: str

    @property
    def name(self) -> str:
        """Its name in the file; on cpu, where there is one dtype, kind and mode by default, the model's."""
        if self.target == "cpu" and (self.kind, self.mode) == ("inference", DEFAULT):
            return self.model
        return f"{self.model} {self.dtype} {self.kind} {self.mode}"

    @property
    def left_out(self) -> str:
        """Why it is not measured, "" where it is."""
        at = (self.model, self.dtype, self.mode)
        return LEFT_OUT.get(at, "") if self.target == "cuda" else ""

    def has(self, words: str) -> bool:
        """Whether all of the words are words of its name: bert_base is none of modernbert_base's."""
        return set(words.split()) <= set(self.name.split())


def cells(
    subjects: Sequence[Subject],
    target: str,
    kinds: Sequence[str],
    modes: Sequence[str],
    dtypes: Sequence[str],
) -> list[Cell]:
    """All cells: of every mode and kind the first models before any second one, so that a cut run has seen each.

    Modes have the order of `MODES`, so that max-autotune finds the kernels of the default mode.
    """
    return [
        Cell(subject.name, dtype, kind, mode, target)
        for mode in sorted(modes, key=MODES.index)
        for kind in kinds
        for dtype in dtypes
        for subject in subjects
        if kind in subject.kinds
    ]


def part_of(found: Sequence[Cell], part: str) -> list[Cell]:
    """The K-th of N parts ("K/N"). Raises ValueError on other text."""
    number, slash, of = part.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"{part!r} is not K/N with K from 1 to N")
    return list(found[int(number) - 1 :: int(of)])
