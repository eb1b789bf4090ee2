"""Measure the CUDA sketches on one GPU: every schedule of every family, checked and timed against eager and Inductor.

    python -m benchmarks.sketch_cuda --out FOLDER [--families softmax,argmax] [--sizes 64MB,2GB] [--most 14]
    python -m benchmarks.sketch_cuda --out FOLDER --products [--tf32] [--families "gemm 4096,conv 3d"]

A tool for whoever works on the sketches. The judge's verdicts are made elsewhere, pair by pair; here kernels run in
one process, interleaved, each with a cold and clean L2 cache, and medians are compared. Needs the launcher
extension (`python setup.py build_ext --inplace`) and nvcc. Prints one line for each case and writes all to FOLDER.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import cases
from benchmarks.sketch_cuda_build import Built, Variant, build
from benchmarks.sketch_cuda_subjects import Subject, probes, product_subjects, subject_of
from benchmarks.store import commit, machine, versions
from cuda_agent_backend.json_values import write_json
from sandbox.plan.plan import Plan

Run = Callable[[], None]


@dataclasses.dataclass
class Timer:
    """Microseconds of interleaved runs, each with a cold L2."""

    flush: Tensor

    def _evict(self) -> None:
        """As `sandbox.timing.cuda_clock` does: no line stays that a run reads, or would write."""
        self.flush.sum()

    def measure(self, runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in runs}
        order = list(runs)
        for run in runs.values():
            run()
        torch.cuda.synchronize()
        for _ in range(rounds):
            random.shuffle(order)
            events = []
            for name in order:
                self._evict()
                start, end = (
                    torch.cuda.Event(enable_timing=True),
                    torch.cuda.Event(enable_timing=True),
                )
                start.record()
                runs[name]()
                end.record()
                events.append((name, start, end))
            torch.cuda.synchronize()
            for name, start, end in events:
                times[name].append(start.elapsed_time(end) * 1000)
        return times


def launcher(variant: Variant, inputs: tuple[Tensor, ...], outputs: list[Tensor]) -> Run:
    """A function that runs the variant on these tensors."""
    from sandbox.launcher.program import LoadFailed, load_program

    plan = Plan.from_json(variant.plan)
    program = load_program(Path(variant.cubin), plan)
    if isinstance(program, LoadFailed):
        raise RuntimeError(program.reason)
    temporaries = [
        torch.empty(s.shape, dtype=getattr(torch, s.dtype), device="cuda")
        for s in plan.temporary_specs
    ]
    pointers = [t.data_ptr() for t in (*inputs, *outputs, *temporaries)]

    def run() -> None:
        assert not isinstance(program, LoadFailed)
        program.launch(pointers, torch.cuda.current_stream().cuda_stream, 0)

    run.keep = temporaries  # type: ignore[attr-defined]
    return run


def error_of(result: Tensor, expected: Tensor, values: Tensor) -> tuple[float, float]:
    """Root mean square and maximum of the error relative to the expected root mean square.

    Positions are judged by the values found there. Infinite and NaN elements must agree, else the error is NaN.
    """
    if not result.is_floating_point():
        if values.is_floating_point() and result.shape == values.shape[:-1]:
            in_range = (result >= 0) & (result < values.shape[-1])
            if not bool(in_range.all()):
                return float("nan"), float("nan")
            result = values.gather(-1, result.unsqueeze(-1)).squeeze(-1).double()
            expected = values.gather(-1, expected.unsqueeze(-1)).squeeze(-1).double()
        else:
            bad = float((result != expected).sum())
            return bad, bad
    total = largest = size = 0.0
    a_parts, b_parts = result.reshape(-1).split(1 << 27), expected.reshape(-1).split(1 << 27)
    for a, b in zip(a_parts, b_parts, strict=True):
        a, finite = a.double(), torch.isfinite(b)
        if not bool(
            torch.where(finite, torch.isfinite(a), (a == b) | (a.isnan() & b.isnan())).all()
        ):
            return float("nan"), float("nan")
        e = torch.where(finite, a - b, 0.0).abs_()
        total, largest = total + float(e.square().sum()), max(largest, float(e.max()))
        size += float(torch.where(finite, b, 0.0).square().sum())
    return (total / max(size, 1e-300)) ** 0.5, largest


def tensors(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def worst(
    results: list[Tensor], expected: list[Tensor], values: Tensor, eager: list[float]
) -> float:
    """Largest error over the outputs, as a multiple of eager's plus a rounding floor."""
    ratios = []
    for r, x, e in zip(results, expected, eager, strict=True):
        floor = torch.finfo(r.dtype).eps / 4 if r.is_floating_point() else 1e-9
        floor *= 64 if r.dtype == torch.float64 else 1  # the oracle's own error
        ratio = error_of(r, x, values)[0] / (e + floor)
        ratios.append(float("inf") if ratio != ratio else ratio)
    return max(ratios)


@dataclasses.dataclass
class Outcome:
    """What one case gave. ``times``: medians in microseconds; ``errors`` as multiples of eager's.

    ``samples``: of the baselines and the fastest variant that is right.
    """

    case: str
    bytes: int
    multiplications: int
    times: dict[str, float]
    errors: dict[str, float]
    variants: dict[str, dict[str, str]]
    problem: str = ""
    samples: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    @property
    def fair(self) -> list[str]:
        return [v for v in self.variants if self.errors.get(v, 9.0) <= 2]


def run_case(case: Subject, built: Built, timer: Timer | None, rounds: int) -> Outcome:
    inputs = case.make("cuda")
    eager = tensors(case.function(*inputs))
    # the oracle: float64 throughout
    expected = tensors(case.function(*(t.double() if t.is_floating_point() else t for t in inputs)))
    own = [error_of(r, x, inputs[0])[0] for r, x in zip(eager, expected, strict=True)]
    moved = sum(t.numel() * t.element_size() for t in (*inputs, *eager))
    outcome = Outcome(case.name, moved, case.multiplications, {}, {}, {}, built.problem)
    runs: dict[str, Run] = {"eager": lambda: case.function(*inputs)}
    if timer is not None:
        torch._dynamo.reset()
        compiled = torch.compile(case.function, dynamic=False)
        outcome.errors["inductor"] = worst(tensors(compiled(*inputs)), expected, inputs[0], own)
        runs["inductor"] = lambda: compiled(*inputs)
        source, target = inputs[0], torch.empty_like(inputs[0])
        runs["copy"] = lambda: target.copy_(source)
    outputs = [torch.empty_like(t) for t in eager]
    for number, variant in enumerate(built.variants):
        name = f"v{number}"
        outcome.variants[name] = {"schedule": variant.schedule, "registers": variant.registers}
        try:
            run = launcher(variant, inputs, outputs)
            for o in outputs:
                o.fill_(
                    float("nan") if o.is_floating_point() else -1 if o.dtype != torch.bool else True
                )
            run()
            torch.cuda.synchronize()
            outcome.errors[name] = worst(outputs, expected, inputs[0], own)
            runs[name] = run
        except RuntimeError as error:
            outcome.variants[name]["problem"] = str(error)[:200]
            if "illegal" in str(error) or "misaligned" in str(error):
                raise RuntimeError(f"{case.name} {variant.schedule}") from error
    del expected
    if timer is not None:
        samples = timer.measure(runs, rounds)
        outcome.times = {name: statistics.median(t) for name, t in samples.items()}
        best = sorted(outcome.fair, key=outcome.times.__getitem__)[:1]
        outcome.samples = {name: samples[name] for name in ("eager", "inductor", "copy", *best)}
        outcome.times["copy"] *= moved / (2 * source.numel() * source.element_size())
    return outcome


def complaint(outcome: Outcome) -> str:
    """What is wrong with a case's variants; empty if nothing."""
    bad = [v for v in outcome.variants if v not in outcome.fair]
    texts = [
        f"    {v} {outcome.errors.get(v)} {outcome.variants[v].get('problem', '')} {outcome.variants[v]['schedule']}"
        for v in bad[:3]
    ]
    head = f"{outcome.case}: {len(bad)} of {len(outcome.variants)} wrong {outcome.problem}"
    return "\n".join([head, *texts]) if bad or not outcome.variants else ""


def line(outcome: Outcome) -> str:
    """One row of the table: times in microseconds, speed-up over the faster baseline, share of a copy's speed."""
    t, fair = outcome.times, outcome.fair
    wrong = len(outcome.variants) - len(fair)
    if not fair:
        return (
            f"{outcome.case:28} none of {len(outcome.variants)} is right; {outcome.problem[:200]}"
        )
    best = min(fair, key=lambda v: t[v])
    base = min(t["eager"], t["inductor"])
    first = t[fair[0]]
    settings = {
        k: v for k, v in json.loads(outcome.variants[best]["schedule"])[0].items() if k != "sketch"
    }
    rate = (
        f"{outcome.multiplications * 2e-6 / t[best]:5.1f} TF/s " if outcome.multiplications else ""
    )
    return (
        f"{rate}{outcome.case:20}{t['eager']:9.1f}{t['inductor']:9.1f}{t[best]:9.1f}{first:9.1f} "
        f" x{base / t[best]:5.3f} "
        f"room {base / t['copy']:5.2f} roof {t['copy'] / t[best]:5.2f} err {outcome.errors[best]:5.2f} "
        f"wrong {wrong} {best} r{outcome.variants[best]['registers']} {json.dumps(settings).replace(' ', '')}"
    )


def summary(outcomes: list[Outcome]) -> dict[str, float]:
    """Counts as the project's table asks for them."""
    gains, room = [], 0
    for o in outcomes:
        fair = [o.times[v] for v in o.fair]
        base = min(o.times["eager"], o.times["inductor"])
        if base / o.times["copy"] < 1.10:
            continue
        room += 1
        if fair and base / min(fair) >= 1.05:
            gains.append(base / min(fair))
    mean = statistics.geometric_mean(gains) if gains else 0.0
    return {"cases": len(outcomes), "with_room": room, "wins": len(gains), "geomean_of_wins": mean}


def document(outcomes: list[Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """All results, with what they were measured on and how."""
    return {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "float32": "tf32" if options.tf32 else "ieee",
        "rounds": options.rounds,
        "most": options.most,
        "outcomes": [dataclasses.asdict(o) for o in outcomes],
        "summary": summary(outcomes),
    }


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--families", default="")
    parser.add_argument("--sizes", default="64MB,512MB,2GB")
    parser.add_argument("--most", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-probes", action="store_true")
    parser.add_argument("--products", action="store_true", help="products and convolutions instead")
    parser.add_argument("--tf32", action="store_true", help="torch may use TF32, and so do we")
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--name", default="sketch_cuda", help="of the file in FOLDER")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> tuple[list[Subject], list[Subject]]:
    """The subjects to time, and the small ones that are only checked."""
    names = set(filter(None, options.families.split(",")))
    if options.products:
        return [p for p in product_subjects() if not names or p.name in names], []
    sizes = options.sizes.split(",")
    timed = [
        subject_of(c)
        for c in cases("cuda")
        if c.size in sizes and (not names or c.family.name in names)
    ]
    small = [p for p in probes() if not options.no_probes and (not names or p.name in names)]
    return timed, small


def main() -> int:
    """Exit status 0 when every case ran."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sketch-cuda-"))
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    timed, small = chosen(options)
    started = time.monotonic()
    outcomes = []
    with ProcessPoolExecutor(options.jobs) as pool, torch.no_grad():
        futures = {
            s.name: pool.submit(_build_named, s.name, folder, options.most, options.tf32)
            for s in (*timed, *small)
        }
        timer = Timer(torch.zeros(64 << 20, device="cuda"))
        print(f"{'case':28}{'eager':>9}{'inductor':>9}{'best':>9}{'first':>9}")
        for case in timed:
            outcome = run_case(case, futures[case.name].result(), timer, options.rounds)
            outcomes.append(outcome)
            print("\n".join(filter(None, [line(outcome), complaint(outcome)])), flush=True)
            torch.cuda.empty_cache()
            write_json(options.out / f"{options.name}.json", document(outcomes, options))
        for case in small:
            outcome = run_case(case, futures[case.name].result(), None, 0)
            print(complaint(outcome) or f"{case.name}: {len(outcome.variants)} right", flush=True)
    print(summary(outcomes), f"{time.monotonic() - started:.0f} s")
    return 0


def _build_named(name: str, folder: Path, most: int, tf32: bool) -> Built:
    subjects = (*probes(), *product_subjects(), *(subject_of(c) for c in cases("cuda")))
    return build(next(s for s in subjects if s.name == name), folder, most, tf32)


if __name__ == "__main__":
    sys.exit(main())
