"""The page of results: ``python -m benchmarks.results_page`` writes docs/results.md from the committed result files.

Every figure of the page is read from a file below benchmarks/results, so the page says nothing that was not measured. A
test compares the page with what this command writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.store import FOLDER, ROOT
from cuda_agent_backend.bench.figures import TaskFigures, geomean, grouped, task_figures
from sandbox.timing.decision import THRESHOLD
from trainer.rivals.registry import CHANCE, CONTROLS, TODAY

PAGE = ROOT / "docs" / "results.md"
Json = Mapping[str, Any]

HEAD = """# Results

The latest run of each benchmark, one table. This page is written by `python -m benchmarks.results_page` from the files
that it names, below `benchmarks/results`. Each file holds its machine, versions, commit and raw samples; older runs are
in its history. How each is measured: [benchmarks](benchmarks.md).

Speed-ups are geometric means. A task for which no kernel won runs Inductor's code and counts as 1. *Slower* counts
tasks with kernels of ours whose upper 95 % bound over Inductor is below 1.

"""


@dataclass(frozen=True)
class Row:
    """One line of the table. files: stems of result files. says: the figures, from those files' contents. waits: there
    is no line until the first file is there."""

    target: str
    dtype: str
    what: str
    files: tuple[str, ...]
    says: Callable[[Sequence[Json]], str]
    waits: bool = False


def tasks_of(found: Sequence[Json]) -> list[TaskFigures]:
    """The figures of each practice task, from its raw samples; of a task that several files hold, of the first one."""
    facts = {name: task for file in reversed(found) for name, task in file["tasks"].items()}
    return [
        task_figures({"name": name, "group": name.partition("/")[0], **task})
        for name, task in facts.items()
    ]


def practice(found: Sequence[Json]) -> str:
    """Of the practice set against Inductor."""
    tasks = tasks_of(found)
    groups = {group: s["geomean"]["inductor"] for group, s in grouped(tasks).items()}
    means = ", ".join(f"{groups[name]:.2f} ({name})" for name in ("single", "fused", "networks"))
    ours = [t for t in tasks if t.timed and not t.fallback]
    slower = sum(t.over["inductor"].high < 1 for t in ours)
    correct = sum(t.correct for t in tasks)
    return f"{correct} of {len(tasks)} correct, {slower} slower; over Inductor {means}"


def autotune(found: Sequence[Json]) -> str:
    """Of the practice set against Inductor's max-autotune."""
    over = [t for t in tasks_of(found) if t.timed and "max_autotune" in t.over]
    faster = sum(t.over["max_autotune"].low > THRESHOLD for t in over)
    value = geomean(t.over["max_autotune"].median for t in over)
    return f"{len(over)} tasks; over max-autotune {value:.2f}; {faster} at least 5 % faster"


def large(found: Sequence[Json]) -> str:
    """Of the large practice set."""
    s = found[0]["summary"]["table"]
    failed, slower = len(s["failed_for_memory"]), len(s["slower_than_inductor"])
    told = len(s.get("not_searched_for_memory", ()))
    why = f", {told} not searched for want of memory" if told else ""
    beyond = {name for phase in s["memory"].values() for name in phase["beyond"]}
    return (
        f"{s['correct']} of {s['tasks']} correct, {failed} failed for memory{why}, {slower} slower; "
        f"over Inductor {s['geomean_over_inductor']['all']:.2f}; {len(beyond)} beyond their memory; "
        f"{s['card_seconds_for_each_task']:.0f} s of a card each"
    )


def large_models(found: Sequence[Json]) -> str:
    """Of whole models on a GPU, by dtype, kind and mode."""
    said = []
    for name, s in found[0]["summary"]["groups"].items():
        counts = (f"{len(s['slower'])} slower", f"{len(s['less_accurate'])} less accurate")
        memory = f"{len(s['more_memory'])} with more memory, {len(s['undecided'])} undecided"
        mean = f"{s['geomean']:.2f}" if s["geomean"] else "none"
        said.append(f"{name}: {s['models']} models, {mean}, {', '.join((*counts, memory))}")
    return "; ".join(said)


def cases(found: Sequence[Json]) -> str:
    """Of region families and products."""
    s = found[0]["summary"]
    wins = s.get("wins_with_room", s["wins"])
    return f"faster on {wins} of {s['with_room']} with room; mean of the wins {s['geomean_of_wins']:.2f}"


def models(found: Sequence[Json]) -> str:
    """Of whole models."""
    s = found[0]["summary"]
    slowest = f"slowest {s['slowest_speedup']:.2f}"
    return f"{s['models']} models; over Inductor {s['geomean']:.2f}; {slowest}"


def overhead(found: Sequence[Json]) -> str:
    """Of compiling and calling."""
    s = found[0]["summary"]
    first = f"first call with a warm cache {s['compile_time_ratio']:.2f} times Inductor's cold one"
    worst = f"worst {s['compile_time_ratio_worst']:.2f}"
    return f"{first} ({worst}); {s['call_overhead_us']:.1f} us for one spliced call"


def first_calls(found: Sequence[Json]) -> str:
    """Of first calls against Inductor's and the budget."""
    s = found[0]["summary"]
    cold = f"{s['cold_within']} of {s['cells']} cold ones within their budget and 5 s or 10 %"
    warm, anew = (
        f"{s[kind]['median']:.1f} s over Inductor's (worst {s[kind]['worst']:.1f})"
        for kind in ("warm_over_inductor_s", "anew_over_inductor_s")
    )
    candidate = f"first candidate after {s['first_candidate_s']['median']:.0f} s"
    return f"{cold}; warm {warm}; compiled once more {anew}; {candidate}"


def chaos(found: Sequence[Json]) -> str:
    """Of rounds in which processes are killed and disks are full."""
    s = found[0]["summary"]
    return f"{s['rounds']} rounds, {s['rounds_with_problems']} with a problem"


def matrix(found: Sequence[Json]) -> str:
    """Of the correctness matrix."""
    return (
        " and ".join(f"{f['summary']['equal']} of {f['summary']['of']}" for f in found)
        + " as eager"
    )


def exploits(found: Sequence[Json]) -> str:
    """Of the corpus of exploits."""
    s = found[0]["summary"]
    said = (
        f"exploits accepted {s['exploits_accepted']} of {s['exploits_tried']}",
        f"honest controls refused {s['honest_controls_refused']} of {s['honest_controls']}",
        f"wrong kernels accepted {s['wrong_kernels_accepted']} of {s['wrong_kernels_tried']}",
    )
    return "; ".join(said if s["wrong_kernels_tried"] else said[:2])


def conformance(found: Sequence[Json]) -> str:
    """Of torch's operator database on forced kernels."""
    said = []
    for target, entry in found[0]["targets"].items():
        s = entry["summary"]
        of = f" of {s['planned']}" if "planned" in s else ""
        what = f"{s['cases']}{of} cases of {s['operators']} operators"
        bad = f"{s['wrong']} wrong, {s['does_not_compile']} do not compile, {s['crash']} crash"
        others = {"hangs": "hang", "raises": "raise", "bug": "with a bug"}
        bad += "".join(f", {s[name]} {words}" for name, words in others.items() if s[name])
        later = sum(run["cases"] for run in entry.get("again", ()))
        what += f" ({later} at a later commit)" if later else ""
        said.append(
            f"{target}: {what}, {bad}; {100 * s['share_of_tasks_covered']:.0f} % of tasks covered"
        )
    return "; ".join(said)


def service(found: Sequence[Json]) -> str:
    """Of the judge under load."""
    s = found[0]["summary"]
    rate = f"{s['verdicts_a_minute']:.0f} verdicts a minute"
    return f"{rate}; {s['overhead_seconds']:.2f} s of harness for each; {s['flips']} verdict flips"


def same_code(found: Sequence[Json]) -> str:
    """Of races of Inductor's code against itself."""
    s = found[0]["summary"]
    return f"{s['aa_faster']} of {s['aa_pairs']} A/A races called faster"


def tasks(found: Sequence[Json]) -> str:
    """Of sets of training tasks."""
    said = []
    for name, s in found[0]["summary"].items():
        parts = []
        if "tasks" in s:
            parts.append(
                f"{s['replayed']} of {s['tasks']} tasks of {s['families']} families replay"
            )
            parts.append(f"{s['covered']} of {s['regions']} regions covered")
        if "drawn" in s:
            parts.append(f"{s['rows_with_a_fault']} of {s['drawn']} drawn at random have a fault")
        if "tasks_a_card_hour" in s:
            parts.append(f"{s['tasks_a_card_hour']} tasks made in an hour of one card")
        said.append(f"{name}: {', '.join(parts)}")
    return "; ".join(said)


def tables(found: Sequence[Json]) -> str:
    """Of tables of timed schedules."""
    s = found[0]["summary"]["tables"]
    said = f"{s['schedules']} schedules in {s['tables']} tables of {s['families']} families"
    return f"{said}; {s['complete']} tables complete"


def rivals(found: Sequence[Json]) -> str:
    """Of an arena: on families that nobody learnt from, who is nearest to the best known after three judgements, and
    what today's search and chance are beside it."""
    own = found[0]["summary"]["splits"]["family"]
    players = [name for name in own if name not in CONTROLS]
    order = sorted(players, key=lambda name: own[name]["at"]["3"]["slowdown"]["value"])
    said = []
    for name in dict.fromkeys((order[0], TODAY, CHANCE)):
        s = own[name]["at"]["3"]["slowdown"]
        said.append(f"{name} {s['value']:.2f} ({s['low']:.2f} to {s['high']:.2f})")
    return f"slowdown to the best known after three judgements: {', '.join(said)}"


AUTOTUNED = (
    "h100-practice-autotune-last",
    "h100-practice-autotune-rest",
    "h100-practice-autotune-ieee",
    "h100-practice-autotune",
    "h200-practice-autotune",
)
HALF = (
    "h100-practice-float16-singles",
    "h100-practice-float16-networks",
    "h100-practice-float16",
    "h200-practice-float16",
)
ROWS = (
    Row("cuda", "float32", "practice set", ("h100-practice-cold",), practice),
    Row("cuda", "bfloat16", "practice set", ("h100-practice-half", "h200-practice-half"), practice),
    Row("cuda", "float16", "practice set", HALF, practice),
    Row("cuda", "float32", "practice set, max-autotune too", AUTOTUNED, autotune),
    Row("cuda", "float32", "practice set, 0.5 to 8 GB", ("h100-large",), large, waits=True),
    *(
        Row("cuda", "both", "whole models over Inductor", (file,), large_models, waits=True)
        for file in ("h100-models", "h200-models")
    ),
    Row("cuda", "float32", "GEMM and convolution, 23 shapes", ("h200-products",), cases),
    Row("cuda", "float32", "region families, 64 MB to 2 GB", ("h200-regions",), cases),
    Row("cuda", "any", "exploits", ("exploits-h200",), exploits),
    Row("cuda", "float32", "judge under load", ("h200-sandbox-service",), service),
    Row("cuda", "float32", "Inductor against itself", ("h200-sandbox-service",), same_code),
    Row("cpu", "float32", "region families, 2 to 24 MB", ("cpu-regions",), cases),
    Row("cpu", "float32", "eight whole models", ("cpu-models",), models),
    Row("cpu", "float32", "overhead, eight models", ("overhead",), overhead),
    Row("cpu", "float32", "first calls, 24 cells", ("first-call",), first_calls),
    Row("cpu", "any", "chaos", ("chaos",), chaos, waits=True),
    Row("cpu", "any", "exploits and wrong kernels", ("exploits-cpu",), exploits),
    Row("cpu", "float32", "judge under load", ("sandbox-service",), service),
    Row("cpu", "float32", "Inductor against itself", ("sandbox-service-aa",), same_code),
    Row("both", "float32", "correctness matrix", ("matrix-torch-2.11-h200", "matrix"), matrix),
    Row("both", "any", "operators of torch, forced", ("conformance",), conformance),
    Row("both", "any", "training tasks", ("synthesis",), tasks, waits=True),
    Row("cuda", "any", "tables of schedules", ("tables",), tables, waits=True),
    Row("cpu", "any", "tables of schedules", ("tables-cpu",), tables, waits=True),
    *(
        Row(
            target,
            "any",
            "rivals on tables: the best, today's, chance",
            (file,),
            rivals,
            waits=True,
        )
        for target, file in (("cuda", "arena"), ("cpu", "arena-cpu"))
    ),
)


def page(folder: Path = FOLDER) -> str:
    """The page's text. Raises FileNotFoundError and KeyError where a file or a figure of it is missing."""
    lines = ["| target | dtype | what | figures | files |", "|---|---|---|---|---|"]
    for row in ROWS:
        if row.waits and not (folder / f"{row.files[0]}.json").is_file():
            continue
        texts = [(folder / f"{name}.json").read_text(encoding="utf-8") for name in row.files]
        said = row.says([json.loads(text) for text in texts])
        named = ", ".join(f"`{name}.json`" for name in row.files)
        lines.append(f"| {row.target} | {row.dtype} | {row.what} | {said} | {named} |")
    return HEAD + "\n".join(lines) + "\n" + CHARTS


CHARTS = """
The float32 practice set, one point or bar for each task:

![Speed-up over Inductor](practice/over-inductor.svg)

![Share of tasks that reach a speed-up](practice/cumulative.svg)

![Roofline floor over time](practice/roofline.svg)
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
