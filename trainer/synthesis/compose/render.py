"""The text of a task file, from its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.synthesis.compose.stage import Extra, Stage

HEAD = """import torch
import torch.nn.functional as F
from torch import nn

DTYPE = torch.{dtype}
TRAINING = {training}
"""


@dataclass(frozen=True)
class Step:
    """A stage and how its result goes on: ``chain``, ``residual`` (added to what went in) or ``gate`` (the sigmoid of
    the result scales what went in)."""

    stage: Stage
    joined: str = "chain"


@dataclass(frozen=True)
class Source:
    """The parts of a file: extra imports, lines of the constructor and of the forward pass, parameters and inputs."""

    imports: tuple[str, ...]
    built: tuple[str, ...]
    lines: tuple[str, ...]
    names: tuple[str, ...]
    inputs: tuple[str, ...]


def randoms(extra: Extra) -> str:
    """The expression that draws a tensor."""
    shape = ", ".join(map(str, extra.shape)) + ("," if len(extra.shape) == 1 else "")
    if extra.below:
        return f"torch.randint({extra.below}, ({shape}))"
    return f"torch.randn({shape.rstrip(',')}, dtype=DTYPE)"


def weight(extra: Extra) -> str:
    """The expression of a parameter: scaled so that what it is multiplied with keeps its size."""
    shape = ", ".join(map(str, extra.shape))
    fan = 1
    for size in extra.shape[:-1] if len(extra.shape) == 2 else extra.shape[1:]:
        fan *= size
    scale = f" * {max(fan, 1) ** -0.5:.4g}" if len(extra.shape) > 1 else ""
    return f"nn.Parameter(torch.randn({shape}){scale})"


def steps_source(first: Extra, steps: Sequence[Step]) -> Source:
    """The lines of steps, one after another."""
    built: list[str] = []
    lines: list[str] = []
    names, inputs = ["x"], [randoms(first)]
    for number, step in enumerate(steps, 1):
        places = {"x": "x", "m": f"self.layer{number}"}
        if step.stage.build:
            built.append(f"self.layer{number} = {step.stage.build}")
        for key, extra in step.stage.extras:
            if extra.as_input:
                places[key] = f"{key}{number}"
                names.append(places[key])
                inputs.append(randoms(extra))
            else:
                places[key] = f"self.{key}{number}"
                built.append(f"self.{key}{number} = {weight(extra)}")
        call = step.stage.call.format(**places)
        match step.joined:
            case "residual":
                call = f"x + {call}"
            case "gate":
                call = f"x * torch.sigmoid({call})"
        lines.append(f"x = {call}")
    return Source((), tuple(built), tuple(lines), tuple(names), tuple(inputs))


def rendered(source: Source, dtype: str, training: bool) -> str:
    """The whole file."""
    head = HEAD.format(dtype=dtype, training=training)
    imports = "".join(f"{line}\n" for line in source.imports)
    head = head.replace("from torch import nn\n", f"from torch import nn\n{imports}")
    built = "".join(f"        {line}\n" for line in source.built)
    lines = "".join(f"        {line}\n" for line in source.lines)
    inputs = "".join(f"        {line},\n" for line in source.inputs)
    return (
        f"{head}\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"{built}"
        "        self.to(DTYPE)\n\n"
        f"    def forward(self, {', '.join(source.names)}):\n"
        f"{lines}"
        "        return x\n\n\n"
        "def get_inputs():\n"
        "    return [\n"
        f"{inputs}"
        "    ]\n\n\n"
        "def get_init_inputs():\n"
        "    return []\n"
    )
