"""The names of all tests, to compare with a list that is kept: none goes missing unseen.

``tests/names.json`` has the list. ``tests/changed_names.json`` says which of them went or got another name since,
each with the reason. The command ``python -m pytest --collect-only -q | python tests/kit/names.py`` writes the list
anew; the changes are then empty again.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
KNOWN = TESTS / "names.json"
CHANGED = TESTS / "changed_names.json"
LONGEST = 200
"""Parameters of more characters than this are listed as their beginning and a digest."""


def short(name: str) -> str:
    """The name of a test as it is listed: long ones are cut, with a digest in place of the rest."""
    if len(name) <= LONGEST:
        return name
    return f"{name[:80]}...{hashlib.sha256(name.encode()).hexdigest()[:16]}]"


def written(names: Iterable[str]) -> dict[str, Any]:
    """The list as JSON: for each file and function the number of its list of parameters, as many share one."""
    lists: dict[tuple[str, ...], int] = {}
    functions: dict[tuple[str, str], list[str]] = {}
    for name in names:
        file, _, test = short(name).partition("::")
        function, bracket, parameters = test.partition("[")
        functions.setdefault((file, function), []).append(bracket + parameters)
    tests: dict[str, dict[str, int]] = {}
    for (file, function), given in sorted(functions.items()):
        number = lists.setdefault(tuple(given), len(lists))
        tests.setdefault(file, {})[function] = number
    return {"parameters": [list(given) for given in lists], "tests": tests}


def listed(written: Mapping[str, Any]) -> set[str]:
    """The names in such a list."""
    return {
        f"{file}::{function}{parameters}"
        for file, functions in written["tests"].items()
        for function, number in functions.items()
        for parameters in written["parameters"][number]
    }


def missing(
    known: Iterable[str], collected: Iterable[str], changed: Mapping[str, Any]
) -> list[str]:
    """Which of the known tests are gone without a reason.

    ``changed["files"]`` gives other paths of files, ``changed["tests"]`` other names of tests: an entry has a regular
    expression ``was`` that matches whole names, ``now`` as `re.sub` takes it, or null for what is gone, and ``why``.
    """
    there = set(map(short, collected))
    rules = [(re.compile(entry["was"]), entry["now"]) for entry in changed["tests"]]

    def now(name: str) -> str | None:
        file, _, test = name.partition("::")
        name = f"{changed['files'].get(file, file)}::{test}"
        for was, becomes in rules:
            if found := was.fullmatch(name):
                return None if becomes is None else found.expand(becomes)
        return name

    return sorted(was for was in known if (name := now(was)) is not None and name not in there)


def main() -> None:
    """Write the list of what pytest collected, from standard input."""
    names = [line.rstrip("\n") for line in sys.stdin if re.match(r"\S+\.py::", line)]
    kept = written(names)
    lines = ",\n".join(json.dumps(given) for given in kept["parameters"])
    tests = ",\n".join(f"{json.dumps(f)}: {json.dumps(t)}" for f, t in kept["tests"].items())
    KNOWN.write_text(f'{{"parameters": [\n{lines}\n],\n"tests": {{\n{tests}\n}}}}\n')
    CHANGED.write_text(json.dumps({"files": {}, "tests": []}, indent=1) + "\n")


if __name__ == "__main__":
    main()
