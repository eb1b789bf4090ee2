"""The arena's results as a page and as plots."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.arena.play import BUDGETS
from trainer.rivals.registry import AGAINST

TITLES = {
    "family": "Families left out",
    "shape": "Unseen sizes of known graphs",
    "device": "Another device",
    "dtype": "Another dtype",
    "held_out": "Families that the policy was not trained on",
}
HEADER = (
    "| rival | " + " | ".join(f"slowdown at {k}" for k in BUDGETS) + " | worst at 3 | hits at 3 | "
    "chosen wrongly at 3 | judgements to 95 % | p90 | never | over today's | slowdown at 3 over today's | "
    "over chance's |"
)


def page(found: Mapping[str, Any]) -> str:
    """Markdown: a table for each split."""
    about = found["tables"]
    devices = ", ".join(f"{name} ({count})" for name, count in about["devices"].items())
    lines = [
        "# Arena",
        "",
        f"{about['count']} tables, {about['schedules']} schedules of which {about['working']} work, "
        f"{about['families']} families, {', '.join(about['dtypes'])}; {devices}. "
        f"{about['complete']} tables are complete. {about['answers_share']:.0%} of schedules are within noise of "
        "their task's best.",
    ]
    for split, rivals in found["splits"].items():
        one = next(iter(rivals.values()))
        lines += [
            "",
            f"## {TITLES.get(split, split)}",
            "",
            f"{one['tables']} test tables in {one['families']} families, {one['seeds']} seeds. In brackets 95 % "
            "intervals by families.",
            "",
            HEADER,
            "|" + "---|" * HEADER.count(" | ") + "---|",
        ]
        order = sorted(rivals, key=lambda name: rivals[name]["to_close"]["capped_mean"]["value"])
        lines += [_line(name, rivals[name]) for name in order]
    return "\n".join(lines) + "\n"


def _line(name: str, found: Mapping[str, Any]) -> str:
    at, close = found["at"], found["to_close"]
    three = at[str(BUDGETS[1])]
    cells = [
        name,
        *(_interval(at[str(k)]["slowdown"]) for k in BUDGETS),
        f"{three['worst_slowdown']:.2f}",
        f"{three['hits']['value']:.0%}",
        f"{three['selection']['value']:.3f}",
        _count(close["judgements"]["value"]),
        _count(close["judgements_p90"]),
        f"{close['censored']:.0%}",
        _interval(found["over_today"]) if "over_today" in found else "",
        *(_over(found, name) for name in AGAINST),
    ]
    return "| " + " | ".join(cells) + " |"


def _interval(value: Mapping[str, float]) -> str:
    return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _over(found: Mapping[str, Any], name: str) -> str:
    over = found["slowdown_over"].get(name)
    return _interval(over[str(BUDGETS[1])]) if over else ""


def _count(value: float | None) -> str:
    return f"over {BUDGETS[-1]}" if value is None else f"{value:g}"


def plot(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Slowdown by judgements, a file for each split; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    from matplotlib.figure import Figure

    made = []
    for split, rivals in found["splits"].items():
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, own in sorted(rivals.items()):
            points = [own["at"][str(k)]["slowdown"] for k in BUDGETS]
            middle = [p["value"] for p in points]
            spans = [
                [p["value"] - p["low"] for p in points],
                [p["high"] - p["value"] for p in points],
            ]
            axes.errorbar(
                BUDGETS,
                middle,
                yerr=[[max(0.0, v) for v in s] for s in spans],
                label=name,
                capsize=2,
            )
        axes.set(
            xscale="log", yscale="log", xlabel="judgements", ylabel="slowdown to the best known",
            title=TITLES.get(split, split),
        )  # fmt: skip
        axes.set_xticks(BUDGETS, labels=map(str, BUDGETS))
        axes.legend(fontsize="small")
        path = folder / f"arena-{split}.png"
        figure.savefig(path, dpi=120)
        made.append(path)
    return made
