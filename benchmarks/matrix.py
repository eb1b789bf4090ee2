"""Correctness matrix: eight models, train and inference, static and dynamic, full graphs: ``matrix.json``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._inductor.exc import InductorError

from benchmarks.equality import Equality, check, step
from benchmarks.store import ROOT, Facts, Results, arguments
from cuda_agent_backend.partition.report import HIT
from cuda_agent_backend.tools.warm import warm
from examples.models import MODELS

Sizes = Literal["none", "batch", "all"]
"""Which sizes may vary in one compiled graph."""
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
    # Regions with symbolic sizes are left to Inductor, so there is nothing to search for.
    graphs = (
        ()
        if dynamic
        else warm(model, inputs, training=train, budget_s=budget_s, options=options).graphs
    )
    cached = {**options, "cuda_agent.search": "cached"}
    sizes: Sizes = "all" if dynamic else "none"
    refusal = ""
    try:
        found = _compare(model, inputs, train, sizes, cached)
    except InductorError as error:
        if not dynamic or _inductor_compiles(model, inputs, train):
            raise
        # Inductor's own code would run, and there is none: the batch alone can vary.
        sizes, refusal = "batch", str(error).splitlines()[0]
        found = _compare(model, inputs, train, sizes, cached)
    return {
        **asdict(found),
        "train": train,
        "dynamic": dynamic,
        "dynamic_sizes": sizes,
        "inductor_refuses_all": refusal,
        "fullgraph": True,
        "regions": sum(graph.wholes for graph in graphs),
        "kernels": sum(graph.count(HIT) for graph in graphs),
    }


def _compare(
    model: nn.Module, inputs: tuple[Tensor, ...], train: bool, sizes: Sizes, options: dict[str, Any]
) -> Equality:
    """With dynamic sizes on a second batch size, in the code that was compiled for the first."""
    torch._dynamo.reset()
    given = inputs if sizes == "none" else tuple(torch.cat([x, x[:1]]) for x in inputs)

    def ours(module: nn.Module) -> Callable[..., object]:
        compiled = _compiled(module, sizes, backend="cuda_agent", options=options)
        return compiled if sizes == "none" else _after(compiled, module, inputs)

    return check(model, given, ours, train=train, inductor=lambda module: _compiled(module, sizes))


def _compiled(module: nn.Module, sizes: Sizes, **more: Any) -> Callable[..., object]:
    """A full graph in which no size, the batch (the leading dimension of every input), or all may vary."""
    dynamic = {"none": False, "batch": None, "all": True}[sizes]
    compiled: Callable[..., object] = torch.compile(module, fullgraph=True, dynamic=dynamic, **more)

    def call(*inputs: Tensor) -> object:
        if sizes == "batch":
            for x in inputs:
                torch._dynamo.mark_dynamic(x, 0)
        return compiled(*inputs)

    return call


def _inductor_compiles(model: nn.Module, inputs: tuple[Tensor, ...], train: bool) -> bool:
    """Whether plain Inductor takes the model with all sizes dynamic."""
    torch._dynamo.reset()
    try:
        step(
            copy.deepcopy(model),
            inputs,
            train=train,
            compile_model=lambda module: _compiled(module, "all"),
        )
    except InductorError:
        return False
    return True


def _after(
    compiled: Callable[..., object], module: nn.Module, first: tuple[Tensor, ...]
) -> Callable[..., object]:
    """The compiled model after a call with other sizes, which must leave no trace in its buffers.

    The second call must find the code of the first good enough: a size held fixed there is an error here.
    """

    def call(*inputs: Tensor) -> object:
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        compiled(*(x.clone().requires_grad_(inputs[0].requires_grad) for x in first))
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(before[name])
        with torch._dynamo.config.patch(error_on_recompile=True):
            return compiled(*inputs)

    return call


def summarise(samples: dict[str, Facts]) -> Facts:
    """The figures of the table's row."""
    return {
        "cases": len(samples),
        "of": len(CASES),
        "equal": sum(facts["equal"] for facts in samples.values()),
        "within_eagers_error": sum(f["equal"] and not f["as_inductor"] for f in samples.values()),
        "all_equal": len(samples) == len(CASES) and all(f["equal"] for f in samples.values()),
        "batch_alone_dynamic": [n for n, f in samples.items() if f.get("dynamic_sizes") == "batch"],
        "different": {n: f["reason"] for n, f in samples.items() if not f["equal"]},
        "cases_with_kernels": sum(f.get("kernels", 0) > 0 for f in samples.values()),
        "worst_error_ratio": max(
            (f.get("error_ratio", 0.0) for f in samples.values()), default=None
        ),
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
        try:
            return run_case(name, args.target, kernels, args.budget)
        except Exception as error:  # one case's failure is that case's result
            return {"equal": False, "reason": f"{type(error).__name__}: {error}"[:500]}

    names = [name for name in CASES if args.only in name]
    results = Results(args.name, summarise, args.folder)
    print(summarise(results.collect(names, run, keep=args.keep, limit_s=args.limit)))


if __name__ == "__main__":
    main()
