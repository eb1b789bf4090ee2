"""Correctness matrix: eight models, train and inference, static and dynamic, full graphs: ``matrix.json``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.equality import Equality, check
from benchmarks.store import ROOT, Facts, Results, arguments
from cuda_agent_backend.warm import warm
from examples.models import MODELS

CASES = {
    f"{model}-{what}-{shapes}": (model, what == "train", shapes == "dynamic")
    for model, what, shapes in itertools.product(
        MODELS, ("inference", "train"), ("static", "dynamic")
    )
}


def run_case(name: str, target: str, kernels: Path, budget_s: float) -> Facts:
    """Search kernels for the case's graphs and compare a step with eager."""
    model_name, train, dynamic = CASES[name]
    torch._dynamo.reset()
    model, inputs = MODELS[model_name]()
    model, inputs = model.to(target), tuple(x.to(target) for x in inputs)
    options = {"cuda_agent.cache_dir": kernels, "cuda_agent.acceptance": "trust"}
    model.train(train)
    warmed = warm(model, inputs, training=train, budget_s=budget_s, options=options)
    cached = {**options, "cuda_agent.search": "cached"}
    found = _compare(model, inputs, train, dynamic, cached)
    return {
        **asdict(found),
        "train": train,
        "dynamic": dynamic,
        "fullgraph": True,
        "regions": sum(len(graph.regions) for graph in warmed.graphs),
        # Regions with symbolic sizes are left to Inductor.
        "kernels": 0 if dynamic else warmed.used,
    }


def _compare(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    train: bool,
    dynamic: bool,
    options: dict[str, Any],
) -> Equality:
    """With dynamic shapes also on a second batch size."""
    torch._dynamo.reset()

    def ours(module: nn.Module) -> Callable[..., object]:
        return torch.compile(
            module, backend="cuda_agent", fullgraph=True, dynamic=dynamic, options=options
        )

    def inductor(module: nn.Module) -> Callable[..., object]:
        return torch.compile(module, fullgraph=True, dynamic=dynamic)

    worst = check(model, inputs, ours, train=train, inductor=inductor)
    if dynamic and worst.equal:
        fewer = tuple(x[:-1] for x in inputs)
        second = check(model, fewer, ours, train=train, inductor=inductor)
        worst = max(worst, second, key=_badness)
    return worst


def _badness(found: Equality) -> tuple[bool, float]:
    return not found.equal, found.error_ratio


def summarise(samples: dict[str, Facts]) -> Facts:
    """The figures of the table's row."""
    return {
        "cases": len(samples),
        "of": len(CASES),
        "equal": sum(facts["equal"] for facts in samples.values()),
        "within_eagers_error": sum(f["equal"] and not f["as_inductor"] for f in samples.values()),
        "all_equal": len(samples) == len(CASES) and all(f["equal"] for f in samples.values()),
        "different": {n: f["reason"] for n, f in samples.items() if not f["equal"]},
        "cases_with_kernels": sum(facts["kernels"] > 0 for facts in samples.values()),
        "worst_error_ratio": max((f["error_ratio"] for f in samples.values()), default=None),
        "torch": torch.__version__,
    }


def main() -> None:
    """Run the cases that are not done."""
    parser = arguments(__doc__)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search per graph")
    parser.add_argument("--name", default="matrix", help="of the result file")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "benchmarks")
    args = parser.parse_args()
    kernels = args.build_dir / f"{args.target}-kernels"

    def run(name: str) -> Facts:
        return run_case(name, args.target, kernels, args.budget)

    names = [name for name in CASES if args.only in name]
    results = Results(args.name, summarise, args.folder)
    print(summarise(results.collect(names, run, keep=args.keep, limit_s=args.limit)))


if __name__ == "__main__":
    main()
