"""One model on cuda_agent against the same model on Inductor: results, times and regions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent_backend.partition.report import HIT, GraphReport
from cuda_agent_backend.runtime.clocks import paired_samples
from cuda_agent_backend.tools.explain import explain
from cuda_agent_backend.tools.model_oracle import device_of, oracle, tensors
from sandbox.accuracy.report import AccuracyReport
from sandbox.accuracy.rule import compare
from sandbox.timing.decision import Control, Interval, control, interval, ratios


@dataclass(frozen=True)
class ModelFigures:
    """One model on cuda_agent against the same on Inductor, in inference.

    regions, promoted: regions of its graphs, and those that run a kernel of ours. speedup: of the whole model over
    Inductor. control: Inductor against itself. error_ratio: the worst output's error over eager's. first_seconds: the
    first call, with compilation and search; inductor_seconds: the same on plain Inductor. samples: seconds of calls.
    """

    regions: int
    promoted: int
    speedup: Interval
    control: Control
    accuracy: AccuracyReport
    first_seconds: float
    inductor_seconds: float
    graphs: tuple[GraphReport, ...]
    samples: dict[str, list[float]]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "error_ratio": self.accuracy.error_ratio}


def measure_model(
    model: nn.Module,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    *,
    rounds: int = 60,
    limit_s: float = 20.0,
    seed: int = 0,
) -> ModelFigures:
    """Compile the model both ways, compare results and times. ``options``: as for `torch.compile`, ours included.

    What is known of regions is asked after the timing, so that the first call is all that a user would wait for.
    """
    device = device_of(inputs)
    with torch.no_grad():
        ours, first_seconds, outputs = _first_call(model, inputs, "cuda_agent", dict(options))
        plain, inductor_seconds, _ = _first_call(model, inputs, "inductor", None)
        accuracy = compare(outputs, tensors(model(*inputs)), oracle(model, inputs))
        samples = paired_samples(
            {
                "cuda_agent": lambda: ours(*inputs),
                "inductor": lambda: plain(*inputs),
                "inductor_again": lambda: plain(*inputs),
            },
            rounds=rounds,
            limit_s=limit_s,
            device=device,
            seed=seed,
        )
    graphs = explain(model, *inputs, options=options).graphs
    return ModelFigures(
        regions=sum(graph.wholes for graph in graphs),
        promoted=sum(graph.count(HIT) for graph in graphs),
        speedup=interval(ratios(samples["inductor"], samples["cuda_agent"])),
        control=control(samples["inductor"], samples["inductor_again"]),
        accuracy=accuracy,
        first_seconds=first_seconds,
        inductor_seconds=inductor_seconds,
        graphs=tuple(graphs),
        samples=samples,
    )


def _first_call(
    model: nn.Module, inputs: Sequence[Any], backend: str, options: dict[str, Any] | None
) -> tuple[Callable[..., Any], float, list[Tensor]]:
    """The compiled model, the seconds of its first call, and what that returned."""
    compiled = torch.compile(model, backend=backend, options=options)
    started = time.perf_counter()
    outputs = tensors(compiled(*inputs))
    if outputs and outputs[0].is_cuda:
        torch.cuda.synchronize()
    return compiled, time.perf_counter() - started, outputs
