"""Result files of what `cuda-agent-train` leaves: of tables, arenas, contests, trainings and evaluations.

    python -m benchmarks.training_results tables build/tables-cpu.json --name tables-cpu
    python -m benchmarks.training_results arena build/arena --name arena-cpu
    python -m benchmarks.training_results arena build/contest --name policy-cpu
    python -m benchmarks.training_results contests whole=build/c0 "without rft=build/c1" --name ablation
    python -m benchmarks.training_results runs build/cpu-0 build/cpu-1 --name training
    python -m benchmarks.training_results episodes build/eval --name policy-live

A file that is there keeps the samples that are not made anew; those of one name are replaced.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.store import FOLDER, Facts, Results, commit, machine

TRAINED, HELD_OUT = "trained", "held_out"
"""The policy's name in a contest, and the contest's split."""
DIGITS = 5
ENDS = 10
"""Steps at either end of a stage, over which the reward is averaged; a third of them where there are fewer than 30."""


class Unreadable(Exception):
    """A folder holds nothing of the kind: which, and what made it would be."""


def of_tables(file: Path) -> dict[str, Facts]:
    """A sample: what ``tables --out`` says of them, and of how timings repeat. Raises `Unreadable`."""
    return {"tables": _read(file, "cuda-agent-train tables --out")}


def tables_summary(samples: Mapping[str, Facts]) -> Facts:
    """The same, with families counted."""
    found = samples["tables"]
    counted = {**found["tables"], "families": len(found["tables"]["families"])}
    return {"tables": counted, **({"again": found["again"]} if "again" in found else {})}


def of_arena(folder: Path) -> dict[str, Facts]:
    """A sample: figures, tables and games of ``arena`` or ``contest``. Raises `Unreadable`."""
    return {"arena": _read(folder / "arena.json", "cuda-agent-train arena (contest)")}


def arena_summary(samples: Mapping[str, Facts]) -> Facts:
    """The tables that were played, and all figures by split and rival."""
    found = samples["arena"]
    return {name: found[name] for name in ("tables", "policies", "splits") if name in found}


def of_contests(named: Iterable[str]) -> dict[str, Facts]:
    """A sample for each ``LABEL=FOLDER``: the policy's figures and games in that contest. Raises `Unreadable`."""
    samples = {}
    for text in named:
        label, _, folder = text.partition("=")
        if not folder:
            raise Unreadable(f"{text!r} is no LABEL=FOLDER")
        found = _read(Path(folder) / "arena.json", "cuda-agent-train contest")
        split = found["splits"].get(HELD_OUT, {})
        if TRAINED not in split:
            raise Unreadable(
                f"no policy played in {folder}; cuda-agent-train contest --policy has one play"
            )
        samples[label] = {
            "tables": found["tables"],
            "policies": found["policies"],
            "figures": split[TRAINED],
            "games": found["games"][HELD_OUT][TRAINED],
        }
    return samples


def contests_summary(samples: Mapping[str, Facts]) -> Facts:
    """By label: trainings, and the slowdown at each budget with its interval."""
    return {
        label: {
            "trainings": sample["policies"]["trainings"],
            "slowdown": {k: at["slowdown"] for k, at in sample["figures"]["at"].items()},
            "hits": {k: at["hits"]["value"] for k, at in sample["figures"]["at"].items()},
        }
        for label, sample in samples.items()
    }


def of_runs(folders: Iterable[Path]) -> dict[str, Facts]:
    """A sample for each stage of each run, ``RUN/STAGE``: the figures of its steps, each a list.

    Raises `Unreadable` where there are none.
    """
    from trainer.health.journal import NAME, read

    samples = {}
    for folder in folders:
        config = _read(folder / "config.json", "cuda-agent-train run")
        for stage in config["stages"]:
            steps = read(folder / stage / NAME)
            if not steps:
                continue
            samples[f"{folder.name}/{stage}"] = {
                "seed": config["seed"],
                "stage": stage,
                "episodes": config[stage]["episodes"],
                "collapsed": (folder / stage / "collapsed.json").is_file(),
                "done": (folder / stage / "done.json").is_file(),
                "figures": {name: _column(steps, name) for name in sorted(steps[0] | steps[-1])},
            }
    if not samples:
        raise Unreadable("no stage of these runs has figures")
    return samples


def runs_summary(samples: Mapping[str, Facts]) -> Facts:
    """By stage: runs, those that collapsed, the reward at both ends of each, seconds and judgements of all."""
    stages: dict[str, list[Facts]] = {}
    for sample in samples.values():
        stages.setdefault(sample["stage"], []).append(sample)
    return {stage: _stage_summary(own) for stage, own in stages.items()}


def _stage_summary(samples: Sequence[Facts]) -> Facts:
    found: Facts = {
        "runs": len(samples),
        "collapsed": sum(sample["collapsed"] for sample in samples),
        "steps": [len(sample["figures"]["seconds"]) for sample in samples],
        "seconds": round(sum(sum(_known(sample, "seconds")) for sample in samples), 1),
        "judgements": round(
            sum(sample["episodes"] * sum(_known(sample, "judgements")) for sample in samples)
        ),
    }
    ends = [_ends(_known(sample, "reward")) for sample in samples]
    known = [end for end in ends if end is not None]
    return {**found, "reward": known} if known else found


def _ends(values: Sequence[float]) -> list[float] | None:
    """Means over the first and the last steps; None where there are none."""
    if not values:
        return None
    width = max(1, min(ENDS, len(values) // 3))
    return [round(statistics.fmean(part), DIGITS) for part in (values[:width], values[-width:])]


def _known(sample: Facts, name: str) -> list[float]:
    return [value for value in sample["figures"].get(name, ()) if value is not None]


def _column(steps: Sequence[Mapping[str, float]], name: str) -> list[float | None]:
    return [None if step.get(name) is None else float(f"{step[name]:.{DIGITS}g}") for step in steps]


def of_episodes(folder: Path) -> dict[str, Facts]:
    """A sample for each policy and budget of an evaluation: its figures and its episodes. Raises `Unreadable`."""
    said = _read(folder / "eval" / "figures.json", "cuda-agent-train eval")
    lines = [
        json.loads(line) for line in (folder / "eval" / "episodes.jsonl").read_text().splitlines()
    ]
    samples = {}
    for budget, policies in said["figures"].items():
        for policy, figures in policies.items() if budget != "arena" else ():
            own = [
                line
                for line in lines
                if (line["policy"], str(line["budget"])) == (policy, budget)
                and _is_as_now(line, said)
            ]
            samples[f"{policy} at {budget}"] = {
                "figures": figures,
                "left": said["left"],
                "episodes": own,
            }
    return samples


def _is_as_now(line: Facts, said: Facts) -> bool:
    """Whether an episode was played by the settings that figures are of; files of older versions name none."""
    how = said.get("how", {}).get(line["policy"])
    return how is None or line.get("how", "") in ("", how)


def episodes_summary(samples: Mapping[str, Facts]) -> Facts:
    """By policy and budget: all figures; `left`, where some episodes are not played yet."""
    left = {sample["left"] for sample in samples.values()} - {0}
    found: Facts = {name: sample["figures"] for name, sample in samples.items()}
    return {**found, **({"left": max(left)} if left else {})}


def _read(path: Path, made_by: str) -> Facts:
    try:
        found: Facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read ({error}); {made_by} writes it") from None
    return found


Summary = Callable[[Mapping[str, Facts]], Facts]
KINDS: dict[str, tuple[Callable[[argparse.Namespace], dict[str, Facts]], Summary]] = {
    "tables": (lambda args: of_tables(Path(args.of[0])), tables_summary),
    "arena": (lambda args: of_arena(Path(args.of[0])), arena_summary),
    "contests": (lambda args: of_contests(args.of), contests_summary),
    "runs": (lambda args: of_runs(map(Path, args.of)), runs_summary),
    "episodes": (lambda args: of_episodes(Path(args.of[0])), episodes_summary),
}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("of", nargs="+", help="folders; a file of tables; of contests LABEL=FOLDER")
    parser.add_argument("--name", required=True, help="of the result file")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are written")
    args = parser.parse_args()
    collect, summarise = KINDS[args.kind]
    try:
        made = collect(args)
    except Unreadable as error:
        parser.error(str(error))
    results = Results(args.name, summarise, args.folder)
    before = json.loads(results.path.read_text())["samples"] if results.path.is_file() else {}
    own = {"commit": commit(), "machine": machine()}
    results.write({**before, **{name: {**facts, **own} for name, facts in made.items()}})
    print(json.dumps(summarise(made), indent=1)[:4000])


if __name__ == "__main__":
    main()
