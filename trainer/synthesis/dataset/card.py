"""The card of a folder of sets: what is in each, how it was made, and from where to load it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainer.synthesis.dataset import parquet

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TaskSet:
    """One file of tasks. dropped: candidates that are not in it, by filter."""

    file: str
    rows: Sequence[Row]
    dropped: Mapping[str, int]

    @property
    def name(self) -> str:
        """Of its configuration: ``cpu`` of ops-cpu.parquet."""
        return Path(self.file).stem.removeprefix("ops-")

    @property
    def machines(self) -> str:
        """Where its tasks were timed, with which torch."""
        return ", ".join(sorted({f"{r['device_name']}, torch {r['torch']}" for r in self.rows}))


def write(folder: Path) -> None:
    """Write the card of all sets that lie in a folder, and their plots. May raise OSError."""
    sets = sets_in(folder)
    plots = {one.name: plot(one, folder) for one in sets}
    (folder / "README.md").write_text(card(sets, plots), encoding="utf-8")


def sets_in(folder: Path) -> list[TaskSet]:
    """Its files that are sets of ours, the largest first. May raise OSError."""
    found = []
    for path in sorted(folder.glob("*.parquet")):
        dropped = parquet.dropped(path)
        if dropped is not None:
            found.append(TaskSet(path.name, parquet.read(path), dropped))
    return sorted(found, key=lambda one: -len(one.rows))


def card(sets: Sequence[TaskSet], plots: Mapping[str, str]) -> str:
    """The text of README.md. plots: files beside it, by the name of their set."""
    total = sum(len(one.rows) for one in sets)
    return "\n".join(
        [
            *_header(sets),
            "",
            "# Training tasks for kernels",
            "",
            f"{total} tasks for training policies that write kernels. Each is a small PyTorch program: a class",
            "`Model`, `get_inputs()` and `get_init_inputs()`. They were composed by rule from operators of torch and",
            "layers of transformers, run, and filtered; no program of a benchmark is among them.",
            "",
            "Times are medians of calls with cold caches on the device that `device_name` names. `launch_bound` marks",
            "tasks whose time lies below the window because launches dominate. With `training`, times are those of",
            "forward and backward. `floor_ms` is what memory and arithmetic of the forward pass take at least.",
            "",
            "| configuration | tasks | families | timed on |",
            "|---|---|---|---|",
            *(
                f"| `{one.name}` | {len(one.rows)} | {len(families(one.rows))} | {one.machines} |"
                for one in sets
            ),
            "",
            *(line for one in sets for line in _section(one, plots.get(one.name, ""))),
        ]
    )


def _section(one: TaskSet, plot: str) -> list[str]:
    rows = one.rows
    return [
        f"## {one.name}",
        "",
        *_counts(
            "Tasks by number of operators", Counter(len(row["ops"]) for row in rows), len(rows)
        ),
        *_counts("Tasks by split", Counter(row["split"] for row in rows), len(rows)),
        *_counts("Tasks by dtype", Counter(row["dtype"] for row in rows), len(rows)),
        *_counts("Tasks by family", families(rows), len(rows)),
        *_counts("Candidates dropped, by filter", one.dropped, sum(one.dropped.values())),
        *_times(one),
        *([f"![Times and families of {one.name}]({plot})", ""] if plot else []),
    ]


def families(rows: Sequence[Row]) -> Counter[str]:
    """In how many tasks each operator family occurs."""
    return Counter(family for row in rows for family in set(row["families"]))


def _header(sets: Sequence[TaskSet]) -> list[str]:
    total = sum(len(one.rows) for one in sets)
    size = next((name for most, name in SIZES if total < most), "100K<n<1M")
    lines = ["---", "license: apache-2.0", "pretty_name: Training tasks for kernels", "tags:"]
    lines += ["- pytorch", "- cuda", "- code", "size_categories:", f"- {size}", "configs:"]
    for number, one in enumerate(sets):
        lines += [f"- config_name: {one.name}", *(["  default: true"] if not number else [])]
        lines += ["  data_files:", "  - split: all", f"    path: {one.file}"]
    lines += ["dataset_info:"]
    for one in sets:
        lines += [f"- config_name: {one.name}", "  features:", *_features()]
        lines += ["  splits:", "  - name: all", f"    num_examples: {len(one.rows)}"]
    return [*lines, "---"]


def _features() -> list[str]:
    from trainer.synthesis.dataset.parquet import schema

    return [line for field in schema() for line in _feature(field.name, field.type, "  ")]


def _feature(name: str, kind: Any, indent: str) -> list[str]:
    """A column in the form that readers of cards know."""
    import pyarrow.types as types

    if types.is_list(kind):
        inner = kind.value_type
        if types.is_struct(inner):
            lines = [f"{indent}- name: {name}", f"{indent}  list:"]
            return lines + [
                x for part in inner for x in _feature(part.name, part.type, indent + "  ")
            ]
        return [f"{indent}- name: {name}", f"{indent}  sequence: {_scalar(inner)}"]
    return [f"{indent}- name: {name}", f"{indent}  dtype: {_scalar(kind)}"]


def _scalar(kind: Any) -> str:
    return {"double": "float64"}.get(str(kind), str(kind))


def _counts(title: str, counts: Mapping[Any, int], total: int) -> list[str]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    rows = [f"| {name} | {count} | {count / max(1, total):.1%} |" for name, count in ordered]
    return [f"### {title}", "", "| | tasks | share |", "|---|---|---|", *rows, ""]


def _times(one: TaskSet) -> list[str]:
    ratios = [row["eager_ms"] / row["inductor_ms"] for row in one.rows if row["inductor_ms"]]
    if not ratios:
        return []
    middle = median(row["eager_ms"] for row in one.rows)
    return [
        "### Times",
        "",
        f"Measured on {one.machines}. Eager's median is {middle:.3g} ms;",
        f"Inductor is {median(ratios):.3g} times as fast as eager at the median.",
        "",
    ]


def plot(one: TaskSet, folder: Path) -> str:
    """Draw times and families where matplotlib is installed; the file's name, else ""."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return ""
    rows, name = one.rows, f"tasks-{one.name}.png"
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 6))
    axes[0].scatter([r["eager_ms"] for r in rows], [r["inductor_ms"] for r in rows], s=4)
    axes[0].set(xscale="log", yscale="log", xlabel="eager, ms", ylabel="Inductor, ms")
    counts = families(rows).most_common()[::-1]
    axes[1].barh([name for name, _ in counts], [count for _, count in counts])
    axes[1].tick_params(axis="y", labelsize=5)
    axes[1].set(xlabel="tasks")
    figure.tight_layout()
    figure.savefig(folder / name, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return name
