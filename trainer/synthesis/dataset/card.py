"""The card of a set: what is in it, how it was made, and from where to load it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))

Row = Mapping[str, Any]


def card(rows: Sequence[Row], dropped: Mapping[str, int], file: str, plots: Sequence[str]) -> str:
    """The text of README.md. dropped: by filter. plots: files beside it."""
    return "\n".join(
        [
            *_header(rows, file),
            "",
            "# Training tasks for kernels",
            "",
            f"{len(rows)} tasks for training policies that write GPU kernels. Each is a small PyTorch program: a class",
            "`Model`, `get_inputs()` and `get_init_inputs()`. They were composed by rule from operators of torch and",
            "layers of transformers, run, and filtered; no program of a benchmark is among them.",
            "",
            "Times are medians of calls with cold caches on the device that `device_name` names. `launch_bound` marks",
            "tasks whose time lies below the window because launches dominate. With `training`, times are those of",
            "forward and backward. `floor_ms` is what memory and arithmetic of the forward pass take at least.",
            "",
            *_counts(
                "Tasks by number of operators", Counter(len(row["ops"]) for row in rows), len(rows)
            ),
            *_counts("Tasks by split", Counter(row["split"] for row in rows), len(rows)),
            *_counts("Tasks by dtype", Counter(row["dtype"] for row in rows), len(rows)),
            *_counts("Tasks by family", families(rows), len(rows)),
            *_counts("Candidates dropped, by filter", Counter(dropped), sum(dropped.values())),
            *_times(rows),
            *(f"![{Path(plot).stem}]({plot})\n" for plot in plots),
        ]
    )


def families(rows: Sequence[Row]) -> Counter[str]:
    """In how many tasks each operator family occurs."""
    return Counter(family for row in rows for family in set(row["families"]))


def _header(rows: Sequence[Row], file: str) -> list[str]:
    size = next((name for most, name in SIZES if len(rows) < most), "100K<n<1M")
    lines = ["---", "license: apache-2.0", "pretty_name: Training tasks for kernels", "tags:"]
    lines += ["- pytorch", "- cuda", "- code", "size_categories:", f"- {size}", "configs:"]
    lines += ["- config_name: default", "  data_files:", "  - split: all", f"    path: {file}"]
    lines += ["dataset_info:", "  features:", *_features()]
    return [*lines, "  splits:", "  - name: all", f"    num_examples: {len(rows)}", "---"]


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
    return [f"## {title}", "", "| | tasks | share |", "|---|---|---|", *rows, ""]


def _times(rows: Sequence[Row]) -> list[str]:
    ratios = [row["eager_ms"] / row["inductor_ms"] for row in rows if row["inductor_ms"]]
    if not ratios:
        return []
    names = ", ".join(sorted({f"{row['device_name']} with torch {row['torch']}" for row in rows}))
    middle = median(row["eager_ms"] for row in rows)
    return [
        "## Times",
        "",
        f"Measured on {names}. Eager's median is {middle:.3g} ms; Inductor is {median(ratios):.3g} times as fast as",
        "eager at the median.",
        "",
    ]


def plot(rows: Sequence[Row], folder: Path) -> list[str]:
    """Draw times and families where matplotlib is installed; the files' names."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return []
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 6))
    axes[0].scatter([r["eager_ms"] for r in rows], [r["inductor_ms"] for r in rows], s=4)
    axes[0].set(xscale="log", yscale="log", xlabel="eager, ms", ylabel="Inductor, ms")
    counts = families(rows).most_common()[::-1]
    axes[1].barh([name for name, _ in counts], [count for _, count in counts])
    axes[1].tick_params(axis="y", labelsize=5)
    axes[1].set(xlabel="tasks")
    figure.tight_layout()
    figure.savefig(folder / "tasks.png", dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return ["tasks.png"]
