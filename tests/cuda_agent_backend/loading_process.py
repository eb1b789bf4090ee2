"""Loads what was compiled elsewhere, as a server does that imports torch and nothing of ours."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MARK = 1000.0


def given(size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 8, generator=generator), torch.randn(8, 4, generator=generator) / 8


def model(x: Tensor, w: Tensor) -> Tensor:
    return torch.exp(x @ w)


class Net(torch.nn.Module):
    """The model with a parameter, as an export has it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(given()[1])

    def forward(self, x: Tensor) -> Tensor:
        return model(x, self.w)


def distance(result: Tensor) -> float:
    """How much larger a result for the first inputs is than eager's: the mark, where our kernel ran."""
    difference = result - model(*given())
    assert float(difference.max() - difference.min()) < 1e-2
    return round(float(difference.mean()), 1)


def idle() -> Any:
    """What of ours is imported, and what torch knows of it, before and after torch's compiler is imported."""

    def seen() -> list[Any]:
        names = [name.split(".") for name in sys.modules]
        ours = [".".join(n) for n in names if n[0] in ("cuda_agent_backend", "sandbox")]
        return [sorted(ours), hasattr(torch.ops.cuda_agent, "run_1_1")]

    before = seen()
    importlib.import_module("torch._inductor")
    return [*before, *seen()]


def function(path: str) -> Any:
    """A function that `aot_compile` saved."""
    with torch.no_grad(), Path(path).open("rb") as file:
        return distance(torch.compiler.load_compiled_function(file)(*given()))


def package(path: str) -> Any:
    """A package of `aoti_compile_and_package`."""
    import torch._inductor

    return distance(torch._inductor.aoti_load_package(path)(given()[0]))


def why(what: str, path: str) -> Any:
    """The error that another function raises."""
    try:
        globals()[what](path)
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
