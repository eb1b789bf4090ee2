"""How long continuous integration takes: the steps of ``.ci/run``, and the test files with the most seconds.

As a command it runs the steps and writes ``ci-time.json``. It is also the plugin of pytest that counts the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.store import FOLDER, ROOT, Facts, Results, commit

FILE_VARIABLE = "CI_TIME_FILE"
"""Where the plugin appends a JSON line for each run of pytest."""
SLOWEST = 40
WHEN = ("before", "after")


class Seconds:
    """The plugin: wall seconds of each file's tests, their set-up included, and how the tests ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count one phase of a test."""
        self.files[report.nodeid.partition("::")[0]] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Write what was counted."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"files": self.files, "outcomes": self.outcomes}) + "\n")


def pytest_configure(config: Any) -> None:
    """Count in the process that has the reports of all workers."""
    if FILE_VARIABLE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds(Path(os.environ[FILE_VARIABLE])))


def steps() -> list[str]:
    """The commands of ``.ci/run``."""
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("make ")]


def run(command: str) -> Facts:
    """Run one step and time it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.jsonl"
        options = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p benchmarks.ci_time"
        given = {FILE_VARIABLE: str(path), "PYTEST_ADDOPTS": options.strip()}
        started, used = time.monotonic(), os.times()
        done = subprocess.run(command.split(), cwd=ROOT, env=os.environ | given, check=False)
        seconds, now = time.monotonic() - started, os.times()
        runs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "exit_status": done.returncode,
        "tests": dict(sum((Counter(r["outcomes"]) for r in runs), Counter())),
        "files": {
            name: round(spent, 1)
            for name, spent in sum((Counter(r["files"]) for r in runs), Counter()).most_common()
        },
    }


def summarise(samples: dict[str, Facts]) -> Facts:
    """The seconds of all steps, before and after, and what they come to of each other."""
    totals = {
        name: round(sum(step["seconds"] for step in facts["steps"].values()))
        for name, facts in samples.items()
    }
    summary: Facts = {"seconds": totals}
    if all(name in totals for name in WHEN):
        summary["after_of_before"] = round(totals["after"] / totals["before"], 3)
    for name, facts in samples.items():
        files: Counter[str] = Counter()
        for step in facts["steps"].values():
            files.update(step.get("files", {}))
        if files:
            summary[f"slowest_{name}"] = dict(files.most_common(SLOWEST))
    return summary


def main() -> int:
    """Run all steps, or those that are named, and write the file; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as", dest="name", choices=WHEN, default="after")
    parser.add_argument("--only", default="", help="steps whose command contains this")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the file is written")
    given = parser.parse_args()
    results = Results("ci-time", summarise, given.folder)
    kept = json.loads(results.path.read_text())["samples"] if results.path.is_file() else {}
    done: dict[str, Facts] = {}
    for command in steps():
        if given.only in command:
            done[command] = run(command)
            kept[given.name] = {"steps": done, "commit": commit()}
            results.write(kept)
            print(f"ci_time {command}: {done[command]['seconds']} s", flush=True)
    return max((facts["exit_status"] for facts in done.values()), default=0)


if __name__ == "__main__":
    sys.exit(main())
