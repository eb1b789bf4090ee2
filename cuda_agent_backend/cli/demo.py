"""``cuda-agent demo``: three models end to end, in a process with an empty cache, then in a second one from that cache.

Both processes are children of the command, so that the second one starts with nothing but what is on disk. They share a
kernel cache and torch's own caches, all new below the build folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent_backend.json_values import write_json
from cuda_agent_backend.tools import tables
from sandbox.timing.decision import Interval

MODELS = ("encoder_layer", "groupnorm_resnet_stage", "mamba_block")
MODELS_FILE = Path(__file__).with_name("demo_models.py")
PHASES = ("cold", "cached")
LIMIT_S = {"cold": 420.0, "cached": 150.0}
"""After so many seconds a process is killed: the whole has to end within ten minutes, set-up included."""
NOT_SLOWER = 0.98
COLD_S = 270.0
"""What the first process is to take: its models share what is left of it."""
OVERHEAD_S, LEAST_BUDGET_S = 30.0, 20.0
"""What compiling, checking and timing a model take beside the search; and the least seconds of search."""


@dataclass(frozen=True)
class Demo:
    """What to run: the file with the models, the folder to work in, the most seconds of search per graph."""

    models: Path
    build_dir: Path
    budget_s: float
    names: Sequence[str] = MODELS

    @property
    def folder(self) -> Path:
        """Emptied at the start."""
        return self.build_dir / "demo"


@dataclass(frozen=True)
class DemoFailed:
    """Why there is no result."""

    reason: str


@dataclass(frozen=True)
class DemoModel:
    """One model. Both speed-ups are over Inductor, whole model; seconds are those of the first call.

    kernels: of each region with a kernel its operators, the whole schedule, and whether and why not it is used.
    """

    name: str
    regions: int
    promoted: int
    cold: Interval
    cached: Interval
    error_ratio: float
    accurate: bool
    cold_seconds: float
    cached_seconds: float
    cached_promoted: int
    kernels: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As ``build/demo.json`` has it; the speed-up is that of the second process."""
        return {
            "name": self.name,
            "regions": self.regions,
            "promoted": self.promoted,
            "speedup": {"median": self.cached.median, "low": self.cached.low},
            "error_ratio": self.error_ratio,
            "accurate": self.accurate,
            "cold_seconds": self.cold_seconds,
            "cached_seconds": self.cached_seconds,
            "kernels": list(self.kernels),
        }


@dataclass(frozen=True)
class DemoResult:
    """All models, and the machine."""

    target: str
    models: tuple[DemoModel, ...]
    machine: Mapping[str, Any]

    @property
    def as_promised(self) -> bool:
        """Whether no model became slower or less accurate, and the second process used what the first had found."""
        return all(
            model.accurate
            and model.cached.high >= NOT_SLOWER
            and model.cached_promoted == model.promoted
            for model in self.models
        )

    def to_json(self) -> dict[str, Any]:
        """The content of ``build/demo.json``."""
        models = [model.to_json() for model in self.models]
        return {"target": self.target, "models": models, "machine": dict(self.machine)}


def run(demo: Demo) -> DemoResult | DemoFailed:
    """Run both processes and show what came of them."""
    if not demo.models.is_file():
        return DemoFailed(f"no file {demo.models}: name another one with --models")
    shutil.rmtree(demo.folder, ignore_errors=True)
    demo.folder.mkdir(parents=True)
    out = tables.console()
    titles = {"cold": "an empty cache: search, verify, promote", "cached": "a second process"}
    for phase in PHASES:
        out.rule(f"{phase}: {titles[phase]}", align="left")
        failed = _child(demo, phase)
        if failed:
            return DemoFailed(failed)
    cold, cached = (json.loads((demo.folder / f"{p}.json").read_text()) for p in PHASES)
    result = combine(cold, cached)
    out.print(table(result))
    return result


def budget_of(left_s: float, models: int, most_s: float) -> float:
    """Seconds of search for the next of `models` models, where `left_s` seconds are left for all of them."""
    return min(most_s, max(left_s / models - OVERHEAD_S, LEAST_BUDGET_S))


def _child(demo: Demo, phase: str) -> str | None:
    """Run one phase in a process group of its own; what went wrong, or None."""
    words = [demo.models, demo.folder, demo.budget_s, *demo.names]
    command = [sys.executable, "-m", "cuda_agent_backend.cli.demo", phase, *map(str, words)]
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str((demo.folder / "torch").absolute()),
    }
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait(LIMIT_S[phase])
    except subprocess.TimeoutExpired:
        return f"the {phase} process was not done after {LIMIT_S[phase]:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"the {phase} process ended with status {code}" if code else None


def combine(cold: Mapping[str, Any], cached: Mapping[str, Any]) -> DemoResult:
    """The result, from what the two processes wrote."""
    models = tuple(
        DemoModel(
            name=name,
            regions=first["regions"],
            promoted=first["promoted"],
            cold=Interval(**first["speedup"]),
            cached=Interval(**second["speedup"]),
            error_ratio=max(first["error_ratio"], second["error_ratio"]),
            accurate=first["accurate"] and second["accurate"],
            cold_seconds=first["first_seconds"],
            cached_seconds=second["first_seconds"],
            cached_promoted=second["promoted"],
            kernels=tuple(map(_kernel, _with_kernels(first))),
        )
        for (name, first), second in zip(
            cold["models"].items(), cached["models"].values(), strict=True
        )
    )
    return DemoResult(cold["target"], models, cold["machine"])


def _with_kernels(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [r for graph in model.get("graphs", ()) for r in graph["regions"] if r["label"]]


def _kernel(region: Mapping[str, Any]) -> dict[str, Any]:
    from cuda_agent_backend.partition.report import HIT

    return {
        "operators": region["operators"],
        "schedule": region["label"],
        "speedup": region["speedup"],
        "used": region["status"] == HIT,
        "why_not": region["reason"],
    }


def table(result: DemoResult) -> Any:
    """The final table."""
    rows = [
        (
            model.name,
            f"{model.promoted} of {model.regions}",
            tables.interval((model.cold.low, model.cold.median, model.cold.high)),
            tables.interval((model.cached.low, model.cached.median, model.cached.high)),
            f"{model.error_ratio:.2f}",
            f"{model.cold_seconds:.1f} s",
            f"{model.cached_seconds:.1f} s",
        )
        for model in result.models
    ]
    header = ("model", "kernels", "over Inductor", "2nd process", "error ratio", "cold", "cached")
    return tables.plain_table(header, rows, f"target {result.target}; whole models, inference")


def child(phase: str, models: Path, folder: Path, budget_s: float, names: Sequence[str]) -> int:
    """One of the two processes: compile, check and time each model, and write ``PHASE.json``."""
    import torch

    from cuda_agent_backend.tools.load_model import BadTarget, load_model
    from cuda_agent_backend.tools.measure_model import measure_model
    from sandbox.timing.machine import facts

    target = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {
        "cuda_agent.cache_dir": folder / "kernels",
        "cuda_agent.search": "search" if phase == "cold" else "cached",
    }
    started = time.monotonic()
    out = tables.console()
    found: dict[str, Any] = {}
    for number, name in enumerate(names):
        left_s = COLD_S - (time.monotonic() - started)
        options["cuda_agent.budget_s"] = budget_of(left_s, len(names) - number, budget_s)
        out.print(f"{name}: compiling" + (" and searching" if phase == "cold" else ""))
        loaded = load_model(f"{models}:{name}")
        if isinstance(loaded, BadTarget):
            print(loaded.reason, file=sys.stderr)
            return 2
        loaded = loaded.to(target)
        figures = measure_model(loaded.model, loaded.inputs, options, limit_s=10.0)
        if phase == "cold":
            out.print(tables.region_table(figures.graphs))
        quiet = "" if figures.control.quiet else f"; not a quiet machine: {figures.control.reason}"
        speedup = figures.speedup
        shown = tables.interval((speedup.low, speedup.median, speedup.high))
        out.print(f"{name}: {shown} over Inductor in {figures.first_seconds:.1f} s{quiet}")
        found[name] = {**figures.to_json(), "accurate": figures.accuracy.passes}
    write_json(folder / f"{phase}.json", {"target": target, "models": found, "machine": facts()})
    return 0


if __name__ == "__main__":
    _phase, _models, _folder, _budget, *_names = sys.argv[1:]
    sys.exit(child(_phase, Path(_models), Path(_folder), float(_budget), _names))
