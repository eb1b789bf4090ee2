"""The eight models on cuda_agent against Inductor, whole models in inference: ``cpu-models.json``."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path

from benchmarks.store import ROOT, Facts, Results, arguments
from cuda_agent_backend.tools.measure_model import measure_model
from cuda_agent_backend.tools.warm import warm
from examples.models import MODELS

FILES = {"cpu": "cpu-models", "cuda": "h200-models"}


def run_model(name: str, target: str, kernels: Path, budget_s: float, limit_s: float) -> Facts:
    """Search kernels for the model, then time it with them, reading them from the cache."""
    import torch

    torch._dynamo.reset()
    model, inputs = MODELS[name]()
    model, inputs = model.to(target), tuple(x.to(target) for x in inputs)
    options = {"cuda_agent.cache_dir": kernels}
    warmed = warm(model, inputs, budget_s=budget_s, options=options)
    cached = {**options, "cuda_agent.search": "cached"}
    found = measure_model(model, inputs, cached, rounds=200, limit_s=limit_s)
    return {
        "speedup": found.speedup.median,
        "low": found.speedup.low,
        "high": found.speedup.high,
        "error_ratio": found.accuracy.error_ratio,
        "accurate": found.accuracy.passes,
        "quiet": found.control.quiet,
        "control": asdict(found.control),
        "regions": found.regions,
        "promoted": found.promoted,
        "search_seconds": round(warmed.seconds, 1),
        "compile_seconds": found.first_seconds,
        "inductor_compile_seconds": found.inductor_seconds,
        "graphs": [graph.to_json() for graph in found.graphs],
        "seconds": found.samples,
    }


def summarise(samples: dict[str, Facts]) -> Facts:
    """The figures of the table's row; a model counts as above 1.05 by its lower bound."""
    speedups = {name: facts["speedup"] for name, facts in samples.items()}
    slowest = min(speedups, key=speedups.__getitem__, default=None)
    return {
        "models": len(samples),
        "slowest_model": slowest,
        "slowest_speedup": speedups[slowest] if slowest else None,
        "below_0.98": sorted(name for name, value in speedups.items() if value < 0.98),
        "above_1.05": sorted(name for name, facts in samples.items() if facts["low"] > 1.05),
        "wins": sum(facts["low"] > 1.05 for facts in samples.values()),
        "geomean": statistics.geometric_mean(speedups.values()) if speedups else None,
        "all_accurate": all(facts["accurate"] for facts in samples.values()),
        "noisy": sorted(name for name, facts in samples.items() if not facts["quiet"]),
    }


def main() -> None:
    """Run the models that are not done."""
    parser = arguments(__doc__)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of search per graph")
    parser.add_argument("--seconds", type=float, default=40.0, help="of timing per model")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "benchmarks")
    args = parser.parse_args()
    results = Results(FILES[args.target], summarise, args.folder)
    kernels = args.build_dir / f"{args.target}-kernels"

    def run(name: str) -> Facts:
        return run_model(name, args.target, kernels, args.budget, args.seconds)

    names = [name for name in MODELS if args.only in name]
    print(summarise(results.collect(names, run, keep=args.keep, limit_s=args.limit)))


if __name__ == "__main__":
    main()
