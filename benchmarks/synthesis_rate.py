"""How fast a set was made: ``python -m benchmarks.synthesis_rate SET PIECE...`` adds it to `synthesis.json`.

SET: the set's file. PIECE: a folder that ``--out`` of a run named; its report tells of each run at it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import synthesis_results
from trainer.synthesis import pace
from trainer.synthesis.run import REPORT


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", type=Path)
    parser.add_argument("pieces", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, default=synthesis_results.FOLDER)
    args = parser.parse_args()
    runs = [run for piece in args.pieces for run in pace.runs_in(piece / REPORT)]
    if not runs:
        parser.error(f"no {REPORT} of {', '.join(map(str, args.pieces))} tells of a run")
    found = pace.rate_of(runs)
    synthesis_results.write(args.folder, f"rate {args.set.stem}", {**found, pace.RUNS: runs})
    print(
        f"{found['tasks_a_card_hour']} tasks an hour and card, {found['cores_a_card']:g} cores a card"
    )


if __name__ == "__main__":
    main()
