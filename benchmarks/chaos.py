"""Rounds of chaos, many at once: ``chaos.json``.

``python -m benchmarks.chaos --rounds 1000 --seed 0 --jobs 10 --limit-s 500 --out DIR`` writes ``DIR/chaos.json`` and
adds problems to ``DIR/chaos.log``, both every few seconds; run again, it goes on where it was cut.
``python -m benchmarks.chaos --merge DIR`` makes ``benchmarks/results/chaos.json`` of it.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.store import FOLDER, ROOT, Facts, Results, commit

sys.path.insert(0, str(ROOT / "tests"))

from chaos.rounds import Ground, run_round

WRITE_EVERY_S = 5.0
LOGGED_MOST = 50
"""So many problems of a run are logged."""
LAST_ROUND_S = 30.0
"""No round begins with less time than this."""


def summarise(samples: dict[str, Facts]) -> Facts:
    """How many rounds there were, what was done in them, and which had problems."""
    bad = {name: facts["problems"] for name, facts in samples.items() if facts["problems"]}
    hits = Counter(note for facts in samples.values() for note in facts["notes"])
    kinds = Counter(_kind(text) for problems in bad.values() for text in problems)
    return {
        "rounds": len(samples),
        "rounds_with_problems": len(bad),
        "lost": kinds["lost"],
        "final": kinds["final"],
        "left_behind": kinds["left"],
        "other_problems": sum(kinds.values()) - sum(kinds[k] for k in ("lost", "final", "left")),
        "problems": bad,
        "what_went_wrong": dict(sorted(hits.items())),
        "whole_rounds": sum(f["done"].startswith("whole") for f in samples.values()),
        "median_seconds": sorted(f["seconds"] for f in samples.values())[len(samples) // 2]
        if samples
        else None,
    }


def _kind(problem: str) -> str:
    for kind, words in (
        ("lost", ("lost", "audit")),
        ("final", ("final",)),
        ("left", ("left", "descriptors")),
    ):
        if problem.startswith(words) or (kind == "left" and "descriptors" in problem):
            return kind
    return "other"


class Rounds:
    """Rounds that several grounds take from one list. rows: those that are done."""

    def __init__(self, seeds: list[int], samples: dict[str, Facts], ends: float) -> None:
        self.samples, self.ends = samples, ends
        self.failures: list[str] = []
        self._logged = 0
        self.commit = commit()
        self._left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for seed in seeds:
            self._left.put(seed)

    def log(self, path: Path) -> None:
        """Add what failed since the last time to a file, which is made for the first failure."""
        new = self.failures[self._logged : LOGGED_MOST]
        if new:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{text}\n" for text in new)
            self._logged += len(new)

    def work(self, ground: Ground) -> None:
        """Run rounds on a ground until there are no more, or no time."""
        try:
            ground.prepare()
            while time.monotonic() < self.ends - LAST_ROUND_S:
                seed = self._left.get_nowait()
                try:
                    row = run_round(ground, seed)
                except Exception as error:  # of the benchmark's own: the round is run another time
                    self.failures.append(f"{seed}: {type(error).__name__}: {error}\n")
                    ground.close()
                    ground = Ground(ground.folder, ground.shared)
                    ground.prepare()
                    continue
                log = row.pop("log", "")
                self.samples[f"{seed:06}"] = {**row, "commit": self.commit}
                if row["problems"]:
                    self.failures.append(f"{seed}: {row['done']}\n{row['problems']}\n{log}\n")
        except queue.Empty:
            return
        except Exception as error:
            self.failures.append(f"a ground is of no use: {type(error).__name__}: {error}\n")
            raise


def run(results: Results, seeds: list[int], jobs: int, limit_s: float) -> dict[str, Facts]:
    """Run what is not done of the seeds, and write all that is."""
    samples = results.done(keep=False)
    left = [seed for seed in seeds if f"{seed:06}" not in samples]
    log = results.folder / "chaos.log"
    rounds = Rounds(left, samples, time.monotonic() + limit_s)
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        os.environ.setdefault("HOME", name)
        grounds = [Ground(place / str(n), place / "shared") for n in range(jobs)]
        grounds[0].prepare()  # what all rounds begin with, while the others import torch
        threads = [threading.Thread(target=rounds.work, args=(ground,)) for ground in grounds]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(WRITE_EVERY_S)
            rounds.log(log)
            results.write(dict(sorted(rounds.samples.copy().items())))
            bad = sum(bool(facts["problems"]) for facts in list(samples.values()))
            print(f"{len(samples)} rounds, {bad} with problems", flush=True)
        for ground in grounds:
            ground.close()
    rounds.log(log)
    results.write(dict(sorted(samples.items())))
    return samples


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--limit-s", type=float, default=500.0)
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the file is written")
    parser.add_argument("--merge", type=Path, help="a folder whose file becomes the result")
    chosen = parser.parse_args()
    if chosen.merge:
        found = (chosen.merge / "chaos.json").read_text(encoding="utf-8")
        (FOLDER / "chaos.json").write_text(found, encoding="utf-8")
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = Results("chaos", summarise, chosen.out)
    seeds = list(range(chosen.seed, chosen.seed + chosen.rounds))
    samples = run(results, seeds, chosen.jobs, chosen.limit_s)
    print(results.path, {k: v for k, v in summarise(samples).items() if k != "problems"})
    return 1 if any(facts["problems"] for facts in samples.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
