"""An independent look at a set of training tasks: rows drawn at random, for what no row may be.

    python -m benchmarks.synthesis_check SET --draw 300 [--device cpu] [--jobs 2] [--seed 1] [--out DIR] [--limit S]

It shares no code with the filters that made the set: graphs are recorded call by call (`synthesis_graph`), dependence
is found in float64 (`synthesis_look`). Rows run confined. A drawn row is also compared with every row of the set that
declares operators of the same names, of which the graph alone is looked at. With ``--out`` answers are kept in
``DIR/check.jsonl``, so it goes on where it was cut. Rows that the machine failed are looked at again: that found no
memory, took too long, or whose process ended (see `synthesis_results.asked`). It writes `synthesis.json`, and ends with
1 where it found something, with 2 where time was over.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import confined, synthesis_results
from benchmarks.synthesis_look import LIKE, MOVED, SAME_NUMBER

Row = Mapping[str, Any]
Facts = dict[str, Any]
LIMIT_S = 240.0
NAME = "check.jsonl"
OTHER_NAMES = {"logsigmoid": "log_sigmoid"}
"""Functions that torch itself calls by another name."""
PARTS = ("fft", "linalg", "special")
"""Modules of torch whose functions have the module's name before their own."""
PRODUCTS = {"mm": "matmul", "bmm": "matmul"}
"""Operators that are one and the same where two programs are compared."""
CANCELLED = re.compile(r"(^|\.)(k|key|k_proj|key_proj|k_lin|linear_k|to_k|attn_k|wk)\.bias$")
"""The bias of keys adds one number to all scores of a query, which softmax takes out again: so it is by a law."""
KINDS = (
    "does not run",
    "duplicate",
    "near duplicate",
    "unused operator",
    "stochastic",
    "not finite",
    "constant",
    "saturated",
    "independent of the inputs",
    "independent of an input",
    "independent of a weight",
)


def faults(row: Row, facts: Facts) -> dict[str, str]:
    """What is wrong with a row by itself, with the reason."""
    if "failed" in facts:
        return {"does not run": facts["failed"]}
    found = {}
    if unused := unused_operators(row["ops"], facts["used"]):
        found["unused operator"] = ", ".join(unused)
    if facts["draws"]:
        found["stochastic"] = "runs on the same inputs differ"
    if not facts["finite"]:
        found["not finite"] = "a result holds NaN or an infinity"
    elif not facts["slopes_finite"]:
        found["not finite"] = "a gradient holds NaN or an infinity"
    if facts["constant"] or facts["slopes_constant"]:
        what = "result" if facts["constant"] else "gradient"
        found["constant"] = f"every {what} holds one number only"
    elif facts["share"] > SAME_NUMBER:
        found["saturated"] = f"{facts['share']:.0%} of a result are one number"
    if facts["other_inputs"] < LIKE:
        found["independent of the inputs"] = f"they move results by {facts['other_inputs']:.1g}"
    still = [str(n) for n, moved in enumerate(facts["by_input"]) if moved < MOVED]
    if still:
        found["independent of an input"] = ", ".join(still)
    still = [n for n, moved in facts["by_weight"].items() if moved < MOVED and not by_law(n, row)]
    if still:
        found["independent of a weight"] = ", ".join(still)
    return found


def by_law(weight: str, row: Row) -> bool:
    """Whether results cannot depend on a weight: the bias of the keys of an attention."""
    attends = any("transformers." in op or "ttention" in op for op in row["ops"])
    return attends and CANCELLED.search(weight) is not None


def unused_operators(ops: Sequence[str], used: Mapping[str, int]) -> list[str]:
    """Declared operators that were called less often, as part of what the results are made of, than declared."""
    wanted = Counter(map(names_of, ops))
    return [
        names[0]
        for names, count in wanted.items()
        if sum(used.get(name, 0) for name in names) < count
    ]


def names_of(op: str) -> tuple[str, ...]:
    """By which names a declared operator may be called, its own first. No other one counts, however alike it is."""
    *before, name = op.split(".")
    part = before[-1] if before else ""
    others = [OTHER_NAMES[name]] if name in OTHER_NAMES else []
    return (name, *others, *([f"{part}_{name}"] if part in PARTS else []))


def twins(
    rows: Sequence[Row], facts: Mapping[str, Facts], drawn: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Drawn rows that another row of the set is like."""
    found: dict[str, dict[str, str]] = {}
    places: dict[str, dict[tuple[Any, ...], list[str]]] = {
        "duplicate": defaultdict(list),
        "near duplicate": defaultdict(list),
    }
    for number, row in enumerate(rows):
        name = name_of(number)
        text = re.sub(r"\s+", " ", row["code"])
        places["duplicate"][("text", text)].append(name)
        if name in facts and "exact" in facts[name]:
            kind = (row["dtype"], row["training"])
            places["duplicate"][("graph", facts[name]["exact"], *kind)].append(name)
            places["near duplicate"][("shape", facts[name]["shape"], *kind)].append(name)
    for what, groups in places.items():
        for names in groups.values():
            for name in names if len(names) > 1 else ():
                if name in drawn and what not in found.get(name, {}):
                    others = [other for other in names if other != name]
                    if what == "near duplicate" and "duplicate" in found.get(name, {}):
                        continue
                    found.setdefault(name, {})[what] = f"like {', '.join(others[:3])}"
    return found


def name_of(number: int) -> str:
    """Of a row, by its place in the set."""
    return f"row {number}"


def to_look_at(rows: Sequence[Row], draw: int, seed: int) -> tuple[list[int], list[int]]:
    """The rows drawn, and the others that may be like one of them."""
    drawn = sorted(random.Random(seed).sample(range(len(rows)), min(draw, len(rows))))
    kinds = {kind_of(rows[number]) for number in drawn}
    others = [n for n, row in enumerate(rows) if kind_of(row) in kinds and n not in set(drawn)]
    return drawn, others


def kind_of(row: Row) -> tuple[Any, ...]:
    """What two rows have in common that may be alike: the names of their operators, whether these are functions or
    modules and however often they are declared."""
    names = {op.rpartition(".")[2].lower().replace("_", "") for op in row["ops"]}
    return (*sorted({PRODUCTS.get(name, name) for name in names}), row["dtype"], row["training"])


def answered(
    rows: Sequence[Row],
    drawn: Sequence[int],
    others: Sequence[int],
    args: argparse.Namespace,
    path: Path,
) -> dict[str, Facts] | None:
    """Facts of the rows drawn, and of others the graphs, by their names; None where the time is up before all are
    there."""
    from benchmarks.synthesis_look import look

    ends = time.monotonic() + args.limit
    names: dict[str, str] = {}
    items: list[tuple[str, Facts]] = []
    for number in (*drawn, *others):
        row, digests = rows[number], number not in drawn
        what = "graph" if digests else "all"
        name = f"{name_of(number)} {row.get('id', '')} {args.device} {what}"
        names[name] = name_of(number)
        given = {"code": row["code"], "training": row["training"], "device": args.device}
        items.append((name, {**given, "digests": digests}))
    how = {"jobs": args.jobs, "target": args.device, "limit_s": LIMIT_S}
    found: dict[str, Facts] = {}
    for found in synthesis_results.asked(items, look, path, **how):
        print(f"{len(found)} of {len(items)}", flush=True)
        if time.monotonic() > ends and len(found) < len(items):
            return None
    return {names[name]: facts for name, facts in found.items()}


def checked(rows: Sequence[Row], args: argparse.Namespace) -> Facts | None:
    """Look at the rows; what was found, with the raw facts. None where the time is up."""
    confined.preload(("torch", "benchmarks.synthesis_look"), args.device)
    drawn, others = to_look_at(rows, args.draw, args.seed)
    with tempfile.TemporaryDirectory() as own:
        folder = args.out or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        facts = answered(rows, drawn, others, args, folder / NAME)
    if facts is None:
        return None
    names = [name_of(number) for number in drawn]
    wrong: dict[str, dict[str, str]] = twins(rows, facts, names)
    for number, name in zip(drawn, names, strict=True):
        wrong[name] = {**faults(rows[number], facts[name]), **wrong.get(name, {})}
    return {
        "drawn": len(drawn),
        "rows": len(rows),
        "compared_with": len(others),
        "not_compared": sum("failed" in facts[name_of(number)] for number in others),
        "seed": args.seed,
        "found": {kind: sum(kind in found for found in wrong.values()) for kind in KINDS},
        "in_float64": sum(bool(facts[name].get("float64")) for name in names),
        "cpu_s": round(sum(found.get("cpu_s", 0.0) for found in facts.values()), 1),
        "wrong": {
            name: {"id": rows[int(name.split()[1])].get("id", ""), **found}
            for name, found in sorted(wrong.items())
            if found
        },
        "looked_at": {
            name: rows[number].get("id", "") for number, name in zip(drawn, names, strict=True)
        },
    }


def arguments() -> argparse.ArgumentParser:
    """Of this command, and of the replay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", type=Path, help="a Parquet file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=synthesis_results.FOLDER)
    return parser


def main() -> int:
    """Entry point; 1 where something was found."""
    parser = arguments()
    parser.add_argument("--draw", type=int, default=300, help="rows to look at")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--out", type=Path, help="the folder of what was answered")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="stop after so many seconds"
    )
    args = parser.parse_args()
    sample = checked(synthesis_results.rows_of(args.set), args)
    if sample is None:
        print("time is up; run it again to go on")
        return 2
    synthesis_results.write(args.folder, f"check {args.set.stem}", sample)
    for name, found in sample["wrong"].items():
        print(f"{name}: {found}")
    print(", ".join(f"{count} {kind}" for kind, count in sample["found"].items()))
    return 1 if sample["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
