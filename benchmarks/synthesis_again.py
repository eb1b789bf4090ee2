"""Whether the same seed gives the same tasks: ``python -m benchmarks.synthesis_again SET FIRST... --again PIECE...``.

FIRST, PIECE: folders that ``--out`` of runs named, by the same seed and versions, one made after the other. Of each
seed number that both have it compares the task's text and what was decided. The result is added to `synthesis.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import synthesis_results
from trainer.synthesis.dataset import journal
from trainer.synthesis.one_task import PASSED

Entries = dict[int, dict[str, Any]]


def compared(
    first: Mapping[int, Mapping[str, Any]], again: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Of seed numbers that both have. other_text: where the task is another one. decided_otherwise: where one of both
    has dropped it, with the filters and reasons."""
    both = sorted(first.keys() & again.keys())
    kept = [seed for seed in both if PASSED == first[seed]["status"] == again[seed]["status"]]
    otherwise = {
        str(seed): [_decision(entries[seed]) for entries in (first, again)]
        for seed in both
        if first[seed]["status"] != again[seed]["status"]
    }
    return {
        "compared": len(both),
        "kept_by_both": len(kept),
        "other_text": [s for s in kept if first[s]["task"]["code"] != again[s]["task"]["code"]],
        "decided_otherwise": otherwise,
    }


def _decision(entry: Mapping[str, Any]) -> str:
    return PASSED if entry["status"] == PASSED else f"{entry['filter']}: {entry['reason']}"


def entries_of(folders: Iterable[Path]) -> tuple[dict[str, Any], Entries]:
    """What runs in these folders were configured as, and all their entries. Raises OSError, and ValueError where one is
    of another kind than the others."""
    identities, entries = [], Entries()
    for folder in folders:
        first, *rest = journal.lines((folder / journal.NAME).read_bytes())
        identities.append({k: v for k, v in first["identity"].items() if k != "part"})
        entries |= {entry["seed"]: entry for entry in rest}
    for identity in identities[1:]:
        if identity != identities[0]:
            raise ValueError(f"runs of two kinds: {identities[0]} and {identity}")
    return identities[0], entries


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", type=Path)
    parser.add_argument("first", nargs="+", type=Path)
    parser.add_argument("--again", nargs="+", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=synthesis_results.FOLDER)
    args = parser.parse_args()
    try:
        identity, first = entries_of(args.first)
        other, again = entries_of(args.again)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if identity != other:
        parser.error(f"the runs are of two kinds: {identity} and {other}")
    found = compared(first, again)
    synthesis_results.write(args.folder, f"again {args.set.stem}", found)
    print(
        f"{found['compared']} seed numbers: {len(found['other_text'])} other texts, "
        f"{len(found['decided_otherwise'])} decided otherwise"
    )


if __name__ == "__main__":
    main()
