"""What the option ``cuda_agent.prepack`` brings by itself, without kernels, against Inductor: ``cpu-prepack.json``."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from benchmarks.store import Facts, Results, arguments
from cuda_agent_backend.tools.measure_model import measure_model

FILES = {"cpu": "cpu-prepack", "cuda": "h200-prepack"}
ROUNDS, LIMIT_S = 200, 20.0


class Autocast(nn.Module):
    """A layer of a transformer in bfloat16 by autocast, on few tokens: each call casts all weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attended, self.projected = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            heads = (
                self.attended(self.norms[0](x)).unflatten(-1, (3, 16, -1)).permute(2, 0, 3, 1, 4)
            )
            attention = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
            x = x + self.projected(attention)
            return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Pruned(nn.Module):
    """A multilayer perceptron with masked weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(3))
        self.register_buffer("masks", (torch.rand(3, width, width) > 0.5).float())

    def forward(self, x: Tensor) -> Tensor:
        for weight, mask in zip(self.weights, self.masks, strict=True):
            x = torch.relu(x @ (weight * mask))
        return x


class Normalised(nn.Module):
    """Convolutions whose weights are normed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [weight_norm(nn.Conv1d(channels, channels, 3, padding=1)) for _ in range(4)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


class Blocks(nn.Module):
    """A product with a matrix of blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        side = width // 16
        self.blocks = nn.ParameterList(torch.randn(side, side) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.block_diag(*self.blocks)


class Plain(nn.Module):
    """Convolutions with batch norm: of weights alone little is computed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                layer
                for _ in range(3)
                for layer in (nn.Conv2d(channels, channels, 3), nn.BatchNorm2d(channels), nn.ReLU())
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


Case = tuple[Callable[[], nn.Module], tuple[int, ...]]
CASES: dict[str, dict[str, Case]] = {
    "cpu": {
        "autocast": (lambda: Autocast(512), (2, 8, 512)),
        "pruned": (lambda: Pruned(1024), (16, 1024)),
        "weight_norm": (lambda: Normalised(256), (2, 256, 64)),
        "blocks": (lambda: Blocks(1024), (16, 1024)),
        "conv_batch_norm": (lambda: Plain(32), (2, 32, 48, 48)),
    },
    "cuda": {
        "autocast": (lambda: Autocast(2048), (4, 32, 2048)),
        "pruned": (lambda: Pruned(4096), (128, 4096)),
        "weight_norm": (lambda: Normalised(1024), (8, 1024, 256)),
        "blocks": (lambda: Blocks(4096), (128, 4096)),
        "conv_batch_norm": (lambda: Plain(128), (16, 128, 64, 64)),
    },
}
"""By target: a model, and the shape of its float32 input."""


def run_case(case: Case, target: str) -> Facts:
    """One model with the option against Inductor. No kernels are searched, and there are none to be found."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, shape = case[0]().to(target).eval(), case[1]
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "cuda_agent.cache_dir": folder,
            "cuda_agent.search": "cached",
            "cuda_agent.prepack": True,
        }
        inputs = (torch.randn(shape, device=target),)
        found = measure_model(model, inputs, options, rounds=ROUNDS, limit_s=LIMIT_S)
    return {
        "speedup": found.speedup.median,
        "low": found.speedup.low,
        "high": found.speedup.high,
        "error_ratio": found.accuracy.error_ratio,
        "accurate": found.accuracy.passes,
        "quiet": found.control.quiet,
        "control": asdict(found.control),
        "seconds": found.samples,
    }


def summarise(samples: dict[str, Facts]) -> Facts:
    """The geometric mean, and the least of all speed-ups."""
    speedups = [facts["speedup"] for facts in samples.values()]
    return {
        "cases": len(samples),
        "geomean": statistics.geometric_mean(speedups) if speedups else None,
        "least": min(speedups, default=None),
        "all_accurate": all(facts["accurate"] for facts in samples.values()),
        "noisy": sorted(name for name, facts in samples.items() if not facts["quiet"]),
    }


def main() -> None:
    """Run the cases that are not done."""
    args = arguments(__doc__ or "").parse_args()
    cases = CASES[args.target]
    results = Results(FILES[args.target], summarise, args.folder)
    chosen = [name for name in cases if args.only in name]
    found = results.collect(
        chosen, lambda name: run_case(cases[name], args.target), keep=args.keep, limit_s=args.limit
    )
    print(summarise(found))


if __name__ == "__main__":
    main()
