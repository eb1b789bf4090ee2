"""A process that runs cases: what it is asked comes in as lines of JSON, rows go out so. What kills it is the runner's
to name: it has said before which case and what of it begins.

    {"cases": ["add|float32|0", ...]}  ->  {"begins": [case, stage]}, ..., {"row": {...}}, ..., {"done": true}
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.commands import commands
from benchmarks.conformance.cases import FULL, Case
from benchmarks.conformance.parsed_headers import ParsedHeaders, parse_headers


def main() -> None:
    """Answer until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--schedules", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints must not come among the rows

    def say(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    from benchmarks.conformance.case_run import quiet, run_case

    quiet()
    _in_float32()
    wake(args.target, args.scratch)
    for line in commands():
        for name in json.loads(line)["cases"]:
            row = run_case(
                Case.named(name),
                args.target,
                args.schedules if name.split("|")[1] == FULL else 1,
                args.scratch,
                lambda stage, name=name: say({"begins": [name, stage]}),  # type: ignore[misc]
            )
            say({"row": asdict(row)})
        say({"done": True})


def wake(target: str, scratch: Path) -> None:
    """Do what is done once in a process: load the database, have a context on the device, let Inductor find out what
    the machine has and parse its headers, have our own headers parsed. With many workers side by side it takes longer
    than the first case has, which would be blamed for it."""
    import torch

    from benchmarks.conformance.database import operators

    torch.set_num_threads(1)  # where a case does not say how many: there is a worker for each core
    operators()
    torch.compile(torch.sin, dynamic=False)(torch.zeros(64, device=target))
    torch._dynamo.reset()
    if target == "cpu":
        parse_ours(scratch / "headers")


def parse_ours(folder: Path) -> None:
    """Have the headers of our kernels for cpu parsed once, into folder. Where they cannot be, kernels are compiled with
    their text, and a line to standard error says why: that takes longer, and nothing else comes of it."""
    from cuda_agent_backend.hook import forced

    found = parse_headers(folder)
    if isinstance(found, ParsedHeaders):
        forced.use_headers(found.flags, (found.folder,))
    else:
        print(f"headers are parsed anew for each kernel: {found}", file=sys.stderr, flush=True)


def _in_float32() -> None:
    """Let no product run in TF32. Where it may, the library takes it for some sizes only, and a kernel that always does
    is refused by the judge, which is no wrong kernel."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


if __name__ == "__main__":
    main()
