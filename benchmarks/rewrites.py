"""Regions that algebraic rewrites make cheap, against the faster of eager and Inductor: ``cpu-rewrites.json`` or
``h200-rewrites.json``.

Each case goes the way of any model, as in ``benchmarks.regions``; the facts also say which rewrite the best candidate
uses.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.cases import Case, Family
from benchmarks.regions import run_cases, summarise
from benchmarks.store import Facts
from cuda_agent_backend.codegen.alternatives import PARAMETER

FILES = {"cpu": "cpu-rewrites", "cuda": "h200-rewrites"}
SIZES = {"cpu": ("2MB", "8MB"), "cuda": ("64MB", "512MB")}
Shape = tuple[int, ...]


def _square(shape: Shape) -> tuple[Shape, ...]:
    """A weight as wide as the rows are long."""
    return ((shape[-1], shape[-1]),)


def _with_bias(shape: Shape) -> tuple[Shape, ...]:
    return (*_square(shape), shape[-1:])


def _rows(shape: Shape) -> tuple[Shape, ...]:
    return (shape[:1],)


def _columns(shape: Shape) -> tuple[Shape, ...]:
    return (shape[-1:],)


def _channels(shape: Shape) -> tuple[Shape, ...]:
    return (shape[1:2],) * 6


def linear_chain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A sum over a linear map's results, and reductions over what is one number by then."""
    y = F.linear(x, w, b).sum(1, keepdim=True)
    return y.max(1, keepdim=True)[0].logsumexp(1, keepdim=True)


def norms(x: Tensor, *of: Tensor) -> Tensor:
    """A batch norm in evaluation, scaled once more."""
    mean, variance, weight, bias, scale, shift = (v[:, None, None] for v in of)
    y = (x - mean) * torch.rsqrt(variance.abs() + 1e-5) * weight + bias + shift
    return F.hardtanh(y.clamp(min=0), 0, 6) * scale * 0.5 * 2.0


ROWS = {"cpu": (1024,), "cuda": (4096,)}
IMAGES = {"cpu": (64, 64, 64), "cuda": (256, 128, 128)}
REWRITES = (
    Family("sum_of_columns", lambda x, w: (x @ w).sum(1), ROWS, _square),
    Family("sum_of_rows", lambda x, w: (x @ w).sum(0), ROWS, _square),
    Family("scaled_mean", lambda x, w, b: F.linear(x, w, b).mean(1) / 2 * 1.5, ROWS, _with_bias),
    Family("linear_chain", linear_chain, ROWS, _with_bias),
    Family("scaled_softmax", lambda x: torch.softmax(x * 0.3, 1), ROWS),
    Family("diagonal_left", lambda x, v: torch.diag(v) @ x, ROWS, _rows),
    Family("diagonal_right", lambda x, v: x @ torch.diag(v), ROWS, _columns),
    Family("pooling_mean", lambda x: F.avg_pool2d(x, 4).mean((2, 3)), IMAGES),
    Family("mean_of_mean", lambda x: x.mean(-1).mean(-1), IMAGES),
    Family("channels", norms, IMAGES, _channels),
)


def cases(target: str) -> tuple[Case, ...]:
    """The families at two sizes each."""
    return tuple(Case(family, target, size) for family in REWRITES for size in SIZES[target])


def with_rewrite(facts: Facts) -> Facts:
    """Also which rewrite won; None where the task as it stands did, or nothing."""
    schedule = json.loads(facts["schedule"]) if facts.get("schedule") else []
    return {**facts, "rewrite": schedule[0].get(PARAMETER) if schedule else None}


def main() -> None:
    """Run the cases that are not done."""
    run_cases(__doc__.partition("\n\n")[0], cases, FILES, summarise, with_rewrite)


if __name__ == "__main__":
    main()
