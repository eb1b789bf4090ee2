"""Compile time with a warm kernel cache, one spliced call, and a second process: ``overhead.json``."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.store import ROOT, Facts, Results, arguments
from examples.models import MODELS

FILES = {"cpu": "overhead", "cuda": "h200-overhead"}
REPEATS = 3


def summarise(samples: dict[str, Facts]) -> Facts:
    """The figures of the table's rows."""
    compiles = {n: f["ratio"] for n, f in samples.items() if n.startswith("compile-")}
    seconds = [f for n, f in samples.items() if n.startswith("second-")]
    call = samples.get("call", {})
    return {
        "models": len(compiles),
        "compile_time_ratio": statistics.median(compiles.values()) if compiles else None,
        "compile_time_ratio_worst": max(compiles.values(), default=None),
        "call_overhead_us": call.get("overhead_us"),
        "native_operators": call.get("native_operators"),
        "second_process_models": len(seconds),
        "second_process_searched": sum(facts["searched"] for facts in seconds),
        "second_process_compiled_kernels": sum(facts["compiled_kernels"] for facts in seconds),
        "second_process_same_speedup": sum(facts["same_speedup"] for facts in seconds),
    }


class Folders:
    """Where kernels and torch's caches are kept. ``torch``: one folder for each cold compile, removed after it."""

    def __init__(self, build: Path, target: str) -> None:
        self.kernels = (build / f"{target}-kernels").absolute()
        self.torch = (build / "torch").absolute()


def child(words: Sequence[str], folders: Folders, torch_cache: Path) -> Facts:
    """Run a part of this module in a fresh process. Raises RuntimeError with its words if it fails."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(torch_cache)}
    command = [sys.executable, "-m", "benchmarks.overhead", "--child", *words]
    command += ["--kernels", str(folders.kernels)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2000:]}")
    found: Facts = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_times(name: str, target: str, folders: Folders) -> Facts:
    """First calls in fresh processes with empty torch caches, ours and plain in turns."""
    taken: dict[str, list[float]] = {"cuda_agent": [], "inductor": []}
    for _ in range(REPEATS):
        for backend, seconds in taken.items():
            shutil.rmtree(folders.torch, ignore_errors=True)
            seconds.append(
                child(["compile", name, target, backend], folders, folders.torch)["seconds"]
            )
    shutil.rmtree(folders.torch, ignore_errors=True)
    ratios = [a / b for a, b in zip(taken["cuda_agent"], taken["inductor"], strict=True)]
    return {"ratio": statistics.median(ratios), "seconds": taken}


def second_process(name: str, target: str, folders: Folders) -> Facts:
    """The model twice, each time in a fresh process, with all caches kept between the two."""
    shutil.rmtree(folders.torch, ignore_errors=True)
    first, second = (
        child(["speed", name, target, "cuda_agent"], folders, folders.torch) for _ in range(2)
    )
    shutil.rmtree(folders.torch, ignore_errors=True)
    low, high = second["speedup"]["low"], second["speedup"]["high"]
    return {
        "searched": second["searched"],
        "compiled_kernels": second["compiled_kernels"],
        "same_speedup": first["speedup"]["low"] <= high and low <= first["speedup"]["high"],
        "promoted": [first["promoted"], second["promoted"]],
        "first": first,
        "second": second,
    }


def run_child(kind: str, name: str, target: str, backend: str, kernels: Path) -> Facts:
    """What a child process does; its answer is printed as JSON."""
    import torch

    model, inputs = MODELS[name]()
    model, inputs = model.to(target), tuple(x.to(target) for x in inputs)
    if kind == "speed":
        return _speed(model, inputs, {"cuda_agent.cache_dir": kernels}, kernels)
    # What a budget left unsearched must not be searched now: it is compilation that is timed.
    options = {"cuda_agent.cache_dir": kernels, "cuda_agent.search": "cached"}
    import torch._inductor.compile_fx

    ours: dict[str, Any] = {"options": options} if backend == "cuda_agent" else {}
    with torch.no_grad():
        model(*inputs)
        begin = time.perf_counter()
        torch.compile(model, backend=backend, **ours)(*inputs)
        return {"seconds": time.perf_counter() - begin}


def _speed(model: Any, inputs: Any, options: dict[str, Any], kernels: Path) -> Facts:
    from cuda_agent_backend.search.client import search_process
    from cuda_agent_backend.tools.measure_model import measure_model

    before = _binaries(kernels)
    found = measure_model(model, inputs, options, rounds=150, limit_s=30.0)
    return {
        "speedup": found.speedup.to_dict(),
        "first_seconds": found.first_seconds,
        "promoted": found.promoted,
        "searched": search_process().pid is not None,
        "compiled_kernels": len(_binaries(kernels) - before),
        "quiet": found.control.quiet,
    }


def _binaries(kernels: Path) -> set[Path]:
    return {p for p in kernels.rglob("*") if p.suffix in (".bin", ".so", ".cubin")}


def warm_up(names: Sequence[str], target: str, kernels: Path, budget_s: float) -> None:
    """Have the kernels of all models in the cache, in a process of its own for each."""
    from cuda_agent_backend.tools.warm import warm

    for name in names:
        model, inputs = MODELS[name]()
        options = {"cuda_agent.cache_dir": kernels}
        warm(
            model.to(target),
            tuple(x.to(target) for x in inputs),
            budget_s=budget_s,
            options=options,
        )


def main() -> None:
    """Run the parts that are not done; with ``--child``, one of them."""
    parser = arguments(__doc__)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of search per graph")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "benchmarks")
    parser.add_argument("--child", nargs=4, metavar=("KIND", "MODEL", "TARGET", "BACKEND"))
    parser.add_argument("--kernels", type=Path)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_child(*args.child, args.kernels)))
        return
    folders = Folders(args.build_dir, args.target)
    models = [name for name in MODELS if args.only in name or args.only == "call"]
    cases = [f"{kind}-{name}" for kind in ("compile", "second") for name in models]

    def run(case: str) -> Facts:
        if case == "call":
            from benchmarks.percall import measure
            from cuda_agent_backend.runtime.machine import arch_of
            from cuda_agent_backend.settings import Settings

            return measure(
                args.target, arch_of(args.target), Settings.from_environment().native_dir
            )
        kind, _, name = case.partition("-")
        return (compile_times if kind == "compile" else second_process)(name, args.target, folders)

    if args.only != "call":
        warm_up(models, args.target, folders.kernels, args.budget)
    results = Results(FILES[args.target], summarise, args.folder)
    chosen = ["call"] if args.only == "call" else ["call", *cases]
    print(summarise(results.collect(chosen, run, keep=args.keep, limit_s=args.limit)))


if __name__ == "__main__":
    main()
