"""What the compiler makes of tasks that nobody chose: every row of a set goes the way of a model, without a search.

    python -m benchmarks.synthesis_replay SET --out DIR [--device cpu] [--jobs 2] [--limit S] [--forced N]

A row is built and traced in a confined process (tensors are fake, so it needs neither memory nor the device), its graph
is partitioned, its regions become tasks, and each task is taken as far as the source of its first kernel. What became
of each region is counted by family of the row: covered, or left to Inductor, and why. ``--forced N``: the first N rows
are compiled and run with those kernels in place, and compared with eager. Answers are kept in ``DIR/replay.jsonl``, so
it goes on where it was cut, and asks rows again that the machine failed (see `synthesis_results.asked`). Once all rows
are there it writes `synthesis.json`.

Rows are traced without Inductor's padding of products: it decides by times that it takes on the device, so that the
table would hang on what else runs there.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import confined, synthesis_results
from benchmarks.store import ROOT
from benchmarks.synthesis_check import arguments, name_of
from benchmarks.synthesis_results import asked

Facts = dict[str, Any]
LIMIT_S = 300.0
NAME = "replay.jsonl"
IN_ONE = 12
"""So many rows are traced in one process: on a host with a GPU, waking it and letting it go takes longer than tracing,
and the driver does that for one process at a time."""
OWN = (ROOT / "cuda_agent_backend", ROOT / "benchmarks")
"""The code generator reads headers of its own, and Dynamo the text of what it traces. Where kernels are compiled, the
compilers' confinement is a program that finds its modules from the root folder."""


def replay(value: Mapping[str, Any], folder: Path) -> Facts:
    """What becomes of a row's regions: ``code``, ``device``, ``training``, ``forced``. Raises what its code raises."""
    from torch._inductor import config

    from benchmarks.coverage import outside_of, part_of
    from benchmarks.tracing import Wishes
    from cuda_agent_backend.graph.layouts import inductor_layouts
    from cuda_agent_backend.options import parse
    from cuda_agent_backend.partition.regions import partition
    from cuda_agent_backend.settings import Settings

    program = folder / "program.py"
    program.write_text(value["code"], encoding="utf-8")
    options = parse(Settings.from_environment(), None, None)
    wishes = Wishes(device=value["device"], training=value["training"])
    with config.patch(shape_padding=False):
        traced = _traced(program, options, wishes)
    regions: list[Facts] = []
    outside: Counter[str] = Counter()
    for graph in traced.graphs:
        with inductor_layouts(graph):
            found = partition(graph)
            for one in outside_of(graph, found):
                outside[one.operator] += one.count
            for part in map(part_of, found):
                regions.append({"family": part.family, "reason": part.reason})
    facts: Facts = {"regions": regions, "outside": dict(outside), "why_moved": traced.why_moved}
    return {**facts, **_forced(program, value)} if value["forced"] else facts


def _traced(program: Path, options: Any, wishes: Any) -> Any:
    """The graphs of a row, of fake tensors; of real ones where its Python asks for their values, as routing does."""
    import torch

    from benchmarks.tracing import Traced, said, trace

    # Outside of the tracer: a program that casts its own weights cannot do so where they are fake.
    model, inputs = _built(program, "meta")
    model.eval().train = lambda mode=True: model  # tasks with a backward pass drop nothing either
    try:
        return trace(lambda: (model, inputs), options, wishes)
    except Exception as error:
        why = said(error)
    here = wishes.device if torch.cuda.is_available() else "cpu"
    found = tuple(_real_graphs(program, here, options, wishes.training))
    return Traced(found, why if here != wishes.device else "")


def _real_graphs(program: Path, device: str, options: Any, training: bool) -> list[Any]:
    """The graphs of one run, forward and backward, each run as it is. Raises what the program raises."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    from benchmarks.synthesis_graph import tensors_in
    from cuda_agent_backend.frontend.decompose import decompose
    from cuda_agent_backend.frontend.recurrent_modules import mark_as_ours, use_operators
    from cuda_agent_backend.tools.capture import post_grad_graph

    found = []

    def inner(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        kept = copy.deepcopy(gm)
        found.append(post_grad_graph(gm, example_inputs, options, kwargs).module.graph)

        def run(given: Any) -> Any:
            return kept(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(gm: Any, example_inputs: Any, **_: Any) -> Any:
        if use_operators(gm):
            return gm.forward
        decompose(gm)
        return compile_fx(gm, example_inputs, inner_compile=inner)

    torch._dynamo.reset()
    model, inputs = _built(program, device)
    with torch.set_grad_enabled(training):
        made = torch.compile(model.eval(), backend=mark_as_ours(backend))(*inputs)
        for value in tensors_in(made):
            if value.requires_grad:
                value.sum().backward(retain_graph=True)
    return found


def _built(program: Path, device: str) -> tuple[Any, list[Any]]:
    """A row's model and inputs on a device. Its module can be imported, as torch asks of what it compiles."""
    import torch

    module = types.ModuleType(program.stem)
    sys.modules[program.stem] = module
    text = program.read_text(encoding="utf-8")
    exec(compile(text, str(program), "exec"), module.__dict__)
    with torch.device(device):
        return module.Model(*module.get_init_inputs()), list(module.get_inputs())


def _forced(program: Path, value: Mapping[str, Any]) -> Facts:
    """Run it with kernels in place, whatever their speed: what became of its regions, and how far the results are from
    those of Inductor's code, both over their distance from eager's."""
    import torch

    from benchmarks.conformance.forced_graphs import Forced
    from benchmarks.synthesis_graph import tensors_in
    from benchmarks.synthesis_look import by_rms

    torch.manual_seed(5)
    model, inputs = _built(program, value["device"])
    model.eval()

    def call(*given: Any) -> list[Any]:
        return tensors_in(model(*given))

    with torch.no_grad():
        eager = call(*inputs)
        with Forced(call, 1, program.parent) as forced:
            ours = forced.call(*inputs)
            parts = [asdict(part) for part in forced.parts()]
        plain = torch.compile(call)(*inputs)
    return {"forced": parts, "ours": by_rms(ours, eager), "inductor": by_rms(plain, eager)}


WRONG, FLOOR = 4.0, {"float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
"""A forced result is wrong where it is so many times as far from eager as Inductor's, and further than the floor."""


def is_wrong(facts: Facts, dtype: str) -> bool:
    """Whether kernels of ours gave a result that Inductor's code would not give."""
    limit = max(FLOOR.get(dtype, 4e-2), WRONG * facts["inductor"])
    return not facts["ours"] <= limit


REASON, ERROR = 120, 240
"""Letters that tell reasons, and errors, from each other."""


def reason_of(text: str, letters: int = REASON) -> str:
    """A reason without its numbers, so that those of one kind are counted together."""
    return re.sub(r"\d+", "N", text.partition("\n")[0])[:letters]


def counted(rows: Sequence[Mapping[str, Any]], answers: Mapping[str, Facts]) -> Facts:
    """The table: tasks that replay, and by family of operators what became of the regions of tasks with it."""
    families: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    whole = 0
    for number, row in enumerate(rows):
        facts = answers.get(name_of(number), {"failed": "not replayed"})
        if "failed" in facts:
            continue
        left = [reason_of(part["reason"]) for part in facts["regions"] if part["reason"]]
        covered = [part["family"] for part in facts["regions"] if not part["reason"]]
        reasons.update(left)
        kernels.update(covered)
        outside.update(facts["outside"])
        whole += bool(covered) and not left and not facts["outside"]
        for family in set(row["families"]):
            families[family].update(covered=len(covered), left=len(left), tasks=1)
    failed = {n: facts["failed"] for n, facts in answers.items() if "failed" in facts}
    forced = {n: facts for n, facts in answers.items() if "forced" in facts}
    statuses = Counter(part["status"] for facts in forced.values() for part in facts["forced"])
    moved = Counter(
        reason_of(f["why_moved"], ERROR) for f in answers.values() if f.get("why_moved")
    )
    dtypes = {name_of(number): row["dtype"] for number, row in enumerate(rows)}
    return {
        "set": synthesis_results.set_facts(rows),
        "replayed": len(answers) - len(failed),
        "failed": failed,
        "regions": sum(kernels.values()) + sum(reasons.values()),
        "covered": sum(kernels.values()),
        "left": dict(reasons.most_common()),
        "in_no_region": dict(outside.most_common()),
        "tasks_covered_whole": whole,
        "by_kernel_family": dict(kernels.most_common()),
        "by_operator_family": {name: dict(found) for name, found in sorted(families.items())},
        "traced_on_cpu_and_moved": sum(moved.values()),
        "why_moved": dict(moved.most_common()),
        "forced": len(forced),
        "forced_regions": dict(statuses.most_common()),
        "forced_wrong": {
            n: [f["ours"], f["inductor"]] for n, f in forced.items() if is_wrong(f, dtypes[n])
        },
        "cpu_s": round(sum(facts.get("cpu_s", 0.0) for facts in answers.values()), 1),
    }


def has_fault(found: Facts, device: str, has_card: bool) -> bool:
    """Whether the table is no good: a task does not replay, a forced kernel is wrong, or graphs of the cpu stand for
    those of a card that was there."""
    moved = device == "cuda" and has_card and found["traced_on_cpu_and_moved"]
    return bool(found["failed"] or found["forced_wrong"] or moved)


def answered(
    rows: Sequence[Mapping[str, Any]], args: argparse.Namespace, path: Path
) -> Iterator[dict[str, Facts]]:
    """All answers so far, after each one, by the rows' names. Those of an earlier run with the same rows on the same
    kind of device are not asked again."""
    names: dict[str, str] = {}
    items: list[tuple[str, Facts]] = []
    for number, row in enumerate(rows):
        forced = number < args.forced
        how = f"{args.device} forced" if forced else args.device
        name = f"{name_of(number)} {row.get('id', '')} {how}"
        names[name] = name_of(number)
        given = {"code": row["code"], "device": args.device, "training": row["training"]}
        items.append((name, {**given, "forced": forced}))
    for answers in asked(
        items,
        replay,
        path,
        jobs=args.jobs,
        target=args.device,
        limit_s=LIMIT_S,
        in_one=1 if args.forced else IN_ONE,
        read=(ROOT,) if args.forced else OWN,
    ):
        yield {names[name]: facts for name, facts in answers.items()}


def _patterns() -> None:
    from benchmarks.tracing import prepare_patterns

    prepare_patterns()


def _preload(device: str) -> None:
    modules = (
        "benchmarks.coverage",
        "benchmarks.conformance.forced_graphs",
        "torch._inductor.compile_fx",
    )
    confined.preload(modules, device, _patterns)


def main() -> int:
    """Entry point; 1 where something is wrong (see `has_fault`), 2 where time was over."""
    parser = arguments()
    parser.add_argument("--out", type=Path, required=True, help="the folder of what was answered")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="stop after so many seconds"
    )
    parser.add_argument(
        "--forced", type=int, default=0, help="run the first so many with kernels in place"
    )
    args = parser.parse_args()
    rows = synthesis_results.rows_of(args.set)
    args.out.mkdir(parents=True, exist_ok=True)
    _preload(args.device)
    if args.forced and args.device == "cpu":
        from sandbox.workers.vector_checks import find_instructions

        find_instructions()
    ends = time.monotonic() + args.limit
    answers: dict[str, Facts] = {}
    for answers in answered(rows, args, args.out / NAME):
        print(f"{len(answers)} of {len(rows)}", flush=True)
        if time.monotonic() > ends and len(answers) < len(rows):
            print("time is up; run it again to go on")
            return 2
    found = counted(rows, answers)
    synthesis_results.write(args.folder, f"replay {args.set.stem}", found)
    print(
        f"{found['replayed']} of {len(rows)} replay; {found['covered']} of {found['regions']} regions covered"
    )
    for name, why in (*found["failed"].items(), *found["forced_wrong"].items()):
        print(f"{name}: {why}")
    for why, count in found["why_moved"].items():
        print(f"{count} traced on the cpu and moved: {why}")
    import torch

    return int(has_fault(found, args.device, torch.cuda.is_available()))


if __name__ == "__main__":
    sys.exit(main())
