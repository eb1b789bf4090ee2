"""How many judgements tables answer in a second on one core: ``python -m benchmarks.replay_rate TABLES``.

It writes `replay-rate.json`. ``judge``: the bare form, a row's number in and a judgement out, tables opened anew each
time. ``messages``: an episode's own tools, which read a call's JSON and write the message that answers it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.store import FOLDER, Facts, Results, commit, machine
from cuda_agent_backend.agent.protocol import ToolCall
from trainer.world.files import read
from trainer.world.replay import Replay
from trainer.world.replay_tools import ReplayTools
from trainer.world.rows import Table

NAME = "replay-rate"
RUNS = 15
EACH = 100
"""Judgements of one table in a run: as many as a long episode has."""


def judgements(tables: Sequence[Table], run: int) -> int:
    """Judge rows by chance, some of each table; how many it were."""
    chance = random.Random(run)
    for table in tables:
        replay = Replay(table, run)
        for row in chance.choices(range(len(table.rows)), k=EACH):
            replay.judge(row)
    return EACH * len(tables)


def messages(tables: Sequence[Table], run: int) -> int:
    """Sketch every schedule of a table and profile what that gave; how many were profiled."""
    count = 0
    for table in tables:
        tools = ReplayTools.of(table, run)
        for row in table.rows:
            sketch = ToolCall("s", "sketch", f'{{"schedule": {row.schedules[0]}}}')
            tools.run([sketch, ToolCall.of("p", "profile", candidate=row.candidate)])
            count += 1
    return count


WAYS: dict[str, Callable[[Sequence[Table], int], int]] = {
    "judge": judgements,
    "messages": messages,
}


def rates(
    tables: Sequence[Table], way: Callable[[Sequence[Table], int], int], runs: int
) -> list[float]:
    """Judgements a second of each run, after one that is not counted."""
    found = []
    for run in range(runs + 1):
        started = time.process_time()
        done = way(tables, run)
        found.append(done / (time.process_time() - started))
    return found[1:]


def summarise(samples: Mapping[str, Facts]) -> Facts:
    """Judgements a second of one core: the median run and the slowest."""
    return {
        name: {
            "median": round(statistics.median(sample["a_second"])),
            "least": round(min(sample["a_second"])),
        }
        for name, sample in samples.items()
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    tables = read([args.tables])
    samples = {
        name: {
            "a_second": rates(tables, way, args.runs),
            "tables": len(tables),
            "commit": commit(),
            "machine": machine(),
        }
        for name, way in WAYS.items()
    }
    args.folder.mkdir(parents=True, exist_ok=True)
    Results(NAME, summarise, args.folder).write(samples)
    for name, found in summarise(samples).items():
        print(f"{name}: {found['median']} a second, {found['least']} in the slowest run")


if __name__ == "__main__":
    main()
