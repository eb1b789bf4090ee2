"""Digests of every kernel source that the code generator proposes, so that a change of the generator shows what it
changes, or that it changes nothing. Needs no GPU: ``sources.json``.

    python -m benchmarks.sources [--only SUBSTRINGS] [--sample N] [--json FILE] [--workers N] [--labels FILE]
    python -m benchmarks.sources --check FILE [--only SUBSTRINGS] [--sample N] [--json FILE]

The tasks are the practice set and the cases of other benchmarks, in float32 and half precision, some with gradients.
Each goes the way of any model (see ``benchmarks.tracing``), and every schedule of every region is written out, for an
H200 and for a processor with AVX-512, whatever machine this is. ``--check`` compares with a list that was written
before, and says which schedules differ; ``--json`` then keeps what was compared (``sources-check.json``). Reasons why
something has no source are counted, and never compared.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import sympy
import torch

from benchmarks.sources_digest import REFUSED, Digested, Outcome, Way, digested
from benchmarks.sources_subjects import LEFT_OUT, Subject, spread, subjects, tasks
from benchmarks.store import Results

FILE = Path(__file__).parent / "results" / "sources.json"
INDUCTORS = "TORCHINDUCTOR_"
"""What Inductor's variables begin with: none of the environment's holds here."""
MOST_SHOWN = 8
"""Schedules that differ of one region, so many of which are named."""

Json = dict[str, Any]


def versions() -> dict[str, str]:
    """Of what writes a part of the sources. The list of one torch says nothing about another's."""
    return {
        "torch": torch.__version__,
        "sympy": sympy.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def stale(listed: Json) -> str:
    """Why a list says nothing about this environment, or ""."""
    own = versions()
    other = [n for n in ("torch", "sympy") if listed["versions"][n] != own[n]]
    return ", ".join(f"{n} is {own[n]}, the list's {listed['versions'][n]}" for n in other)


def chosen(only: str = "", sample: int = 0) -> list[Subject]:
    """Entries whose names contain one of the parts that commas divide; of a number of tasks where one is given."""
    names = spread(tasks(), sample) if sample else tasks()
    return [subject for subject in subjects(names) if _is_wanted(subject.name, only)]


def _is_wanted(name: str, only: str) -> bool:
    return any(part in name for part in only.split(","))


def outcomes(wanted: Sequence[Subject], workers: int) -> Iterator[Outcome]:
    """Of each subject, as they are done in order. Workers are processes of their own, without Inductor's variables."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(INDUCTORS)}
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            yield from pool.map(digested, wanted)
    finally:
        os.environ.update(kept)


def line_of(region: Digested) -> Json:
    """A region as the list has it."""
    if not region.covered:
        return {"task": region.task, "uncovered": True}
    found: Json = {
        "task": region.task,
        "family": region.family,
        "schedules": len(region.ways),
        "digests": _joined(region.ways),
    }
    return {**found, "tf32": _joined(region.tf32)} if region.tf32 else found


def _joined(ways: Sequence[Way]) -> str:
    return " ".join(way.digest for way in ways)


def entry_of(one: Outcome) -> list[Json] | str:
    """What the list has of one entry: its regions, or what went wrong."""
    return f"error: {one.problem}" if one.problem else [line_of(r) for r in one.regions]


def counts_of(found: Sequence[Outcome]) -> dict[str, int]:
    """How much there is of everything."""
    regions = [region for one in found for region in one.regions]
    ways = [way for region in regions for way in (*region.ways, *region.tf32)]
    return {
        "entries": len(found),
        "errors": sum(bool(one.problem) for one in found),
        "regions": len(regions),
        "uncovered": sum(not region.covered for region in regions),
        "schedules": len(ways),
        "refused": sum(way.digest == REFUSED for way in ways),
        "distinct": len({way.digest for way in ways}),
    }


def text_of(found: Sequence[Outcome]) -> str:
    """The list as JSON with one line for each region."""
    entries = (_entry(one) for one in sorted(found, key=lambda one: one.name))
    reasons = collections.Counter(r for one in found for g in one.regions for r in g.reasons)
    ordered = dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
    head = {"versions": versions(), "counts": counts_of(found), "left_out": LEFT_OUT}
    parts = [f" {json.dumps(name)}: {_indented(value)}" for name, value in head.items()]
    parts.append(' "entries": {\n' + ",\n".join(entries) + "\n }")
    parts.append(f' "reasons": {_indented(ordered)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _entry(one: Outcome) -> str:
    made = entry_of(one)
    if not made or isinstance(made, str):
        return f"  {json.dumps(one.name)}: {json.dumps(made)}"
    body = ",\n".join(f"   {json.dumps(line)}" for line in made)
    return f"  {json.dumps(one.name)}: [\n{body}\n  ]"


def _indented(value: Any) -> str:
    return json.dumps(value, indent=1).replace("\n", "\n ")


def differences(listed: Json, one: Outcome) -> Iterator[str]:
    """What of an entry is not as the list has it."""
    if one.name not in listed["entries"]:
        yield f"{one.name}: not in the list"
        return
    before, now = listed["entries"][one.name], entry_of(one)
    if isinstance(before, str) or isinstance(now, str):
        if before != now:
            said = [x if isinstance(x, str) else f"{len(x)} regions" for x in (before, now)]
            yield f"{one.name}: {said[0]} in the list, {said[1]} now"
        return
    if len(before) != len(now):
        yield f"{one.name}: {len(before)} regions in the list, {len(now)} now"
    for number, (old, region) in enumerate(zip(before, one.regions, strict=False)):
        yield from _differences(f"{one.name}, region {number}", old, region)


def _differences(where: str, old: Json, region: Digested) -> Iterator[str]:
    if old["task"] != region.task:
        yield f"{where}: task {old['task'] or 'none'} in the list, {region.task or 'none'} now"
    covered = not old.get("uncovered", False)
    if covered != region.covered:
        yield f"{where}: {'' if covered else 'not '}covered in the list, and now the contrary"
        return
    for name, ways in (("", region.ways), (" in TF32", region.tf32)):
        before = old.get("tf32" if name else "digests", "").split()
        if len(before) != len(ways):
            yield f"{where}{name}: {len(before)} schedules in the list, {len(ways)} now"
        pairs = enumerate(zip(before, ways, strict=False))
        changed = [(n, was, way) for n, (was, way) in pairs if was != way.digest]
        for place, was, way in changed[:MOST_SHOWN]:
            yield f"{where}{name}, schedule {place}: {was} -> {way.digest} {way.label}"
        if len(changed) > MOST_SHOWN:
            yield f"{where}{name}: {len(changed)} schedules differ in all"


def keep_check(path: Path, found: Sequence[Outcome], faults: Sequence[str], seconds: float) -> None:
    """Write what a comparison with a list found: the seconds of each entry, what there is, and what differs."""
    summary = {**counts_of(found), "differences": len(faults), "seconds": round(seconds)}
    samples = {
        "seconds": {one.name: round(one.seconds, 1) for one in found},
        "faults": {"all": list(faults)},
    }
    Results(path.stem, lambda _: summary, path.parent).write(samples)


def _gone(listed: Json, wanted: Sequence[Subject], only: str) -> list[str]:
    """Entries of the list, as far as they were asked for, that there are no more."""
    there = {subject.name for subject in wanted}
    gone = (n for n in listed["entries"] if n not in there and _is_wanted(n, only))
    return [f"{name}: only in the list" for name in gone]


def _labels(found: Sequence[Outcome]) -> Json:
    """For whoever looks for what differs: the label of every schedule, by entry and region."""
    return {
        one.name: [
            {"task": region.task, "ways": [[w.digest, w.label] for w in region.ways],
             "tf32": [[w.digest, w.label] for w in region.tf32], "reasons": region.reasons}
            for region in one.regions
        ]
        for one in found
    }  # fmt: skip


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="parts of entries' names, by commas")
    parser.add_argument("--sample", type=int, default=0, help="so many tasks, evenly spread")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help=f"default for a whole list: {FILE}")
    parser.add_argument("--check", type=Path, help="a list to compare with; none is written")
    parser.add_argument("--labels", type=Path, help="where labels of schedules go")
    return parser.parse_args()


def main() -> int:
    """Exit status 1 where an entry has no regions for a problem, or is not as the list has it."""
    options = _parsed()
    listed = json.loads(options.check.read_text(encoding="utf-8")) if options.check else None
    if listed and (why := stale(listed)):
        print(why)
        return 1
    wanted, started = chosen(options.only, options.sample), time.monotonic()
    found: list[Outcome] = []
    faults: list[str] = []
    for one in outcomes(wanted, options.workers):
        found.append(one)
        new = list(differences(listed, one)) if listed else []
        new += [f"{one.name}: {one.problem}"] if one.problem else []
        faults += new
        print("\n".join([f"{one.seconds:6.1f} s {one.name}", *new]), flush=True)
    if listed and not options.sample:
        faults += _gone(listed, wanted, options.only)
    seconds = time.monotonic() - started
    target = options.json or (None if options.check or options.only or options.sample else FILE)
    if listed and target:
        keep_check(target, found, faults, seconds)
    elif target:
        target.write_text(text_of(found), encoding="utf-8")
    if options.labels:
        options.labels.write_text(json.dumps(_labels(found), indent=1), encoding="utf-8")
    print("\n".join(["", *faults, f"{counts_of(found)}"]))
    print(f"{len(faults)} differences or errors, {seconds:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
