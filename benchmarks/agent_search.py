"""How many judgements a search needs: ``agent-search.json``, or ``cpu-agent-search.json``.

    python -m benchmarks.agent_search [--target cuda] [--only NAME] [--seconds SECONDS] [--most SCHEDULES]

For each task a table is measured once (`agent_search_table`); then policies are run on the tables, where a judgement is
a look into the table (`agent_search_simulation`): uniform random schedules of the table, the proposals in their order,
the search policy, and the search policy with the other tasks' winners in its memory. ``--episodes``: each task is
searched for real as well.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace

from benchmarks.agent_search_summary import summarise
from benchmarks.agent_search_table import KeepingJudge, episode, measure
from benchmarks.agent_search_tasks import subjects
from benchmarks.store import Facts, Results, arguments
from cuda_agent_backend.runtime.machine import arch_of
from cuda_agent_backend.settings import Settings
from cuda_agent_backend.tools.warm import options_from
from sandbox.judge.settings import JudgeSettings

EPISODE = "episode-"
"""Before the name of a task that was searched for real."""
FILES = {"cpu": "cpu-agent-search", "cuda": "agent-search"}


def main() -> None:
    """Measure the tables that are not there, then simulate."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, dest="limit", help="the same as --limit")
    parser.add_argument(
        "--most",
        type=int,
        default=32,
        help="schedules in a table: proposals, then a sample of the others",
    )
    parser.add_argument("--episodes", action="store_true", help="also search each task for real")
    parser.add_argument("--no-tables", action="store_true", help="measure no table")
    parser.add_argument("--no-summary", action="store_true", help="play no policies on the tables")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of a real search")
    args = parser.parse_args()
    chosen = {s.name: s for s in subjects(args.target) if args.only in s.name}
    options = replace(options_from(None, None), search="cached", min_bytes=0)
    results = Results(FILES[args.target], lambda _: {}, args.folder)
    end = time.monotonic() + args.limit
    settings = Settings.from_environment()
    with (
        tempfile.TemporaryDirectory() as scratch,
        KeepingJudge(
            JudgeSettings(
                args.target,
                scratch_dir=scratch,
                native_dir=settings.native_dir,
                device_lock=settings.device_lock,
                arch=arch_of(args.target),
            )
        ) as judge,
    ):

        def run(name: str) -> Facts:
            if name.startswith(EPISODE):
                return episode(chosen[name.removeprefix(EPISODE)], judge, options, args.budget)
            return measure(chosen[name], judge, options, args.most, lambda: time.monotonic() > end)

        names = [
            *([] if args.no_tables else chosen),
            *(EPISODE + n for n in chosen if args.episodes),
        ]
        samples = results.collect(names, run, keep=args.keep, limit_s=args.limit)
    if not args.no_summary:  # takes minutes, and so comes once
        whole = Results(FILES[args.target], summarise, args.folder)
        whole.write(samples)


if __name__ == "__main__":
    main()
