"""Fuzz the parsers guided by what code they reach, each in a process of its own: `make fuzz`.

A finding ends that parser's run with the text that brought it about; the text is kept in `build/fuzz`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "fuzz"
PACKAGES = ["sandbox", "kernel_cache", "cuda_agent_backend.agent"]
LEFT_OUT = {"graph of a task"}
"""Too slow: torch runs in it. The other tests cover it."""
TOO_LONG_S = 5
"""One text may take so long; a hang is a finding."""


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one parser in this process; it ends with the process."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from parsers import PARSERS
    parser = PARSERS[name]
    folder = FOLDER / name.replace(" ", "-")
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    (folder / "corpus" / "valid").write_text(parser.valid, encoding="utf-8")

    def one(data: bytes) -> None:
        parser.survives(data.decode("utf-8", errors="replace"))

    options = [
        f"-max_total_time={seconds}",
        f"-timeout={TOO_LONG_S}",
        "-max_len=8192",
        "-rss_limit_mb=4096",
    ]
    atheris.Setup([name, *options, f"-artifact_prefix={folder}/", str(folder / "corpus")], one)
    atheris.Fuzz()


def main() -> None:
    """Fuzz all parsers, or the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each parser")
    parser.add_argument("--only", default="", help="one parser, in this process")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    if args.only:
        fuzz(args.only, args.seconds)
        return
    from parsers import PARSERS

    failed = []
    for name in [name for name in PARSERS if name not in LEFT_OUT]:
        command = [sys.executable, __file__, "--only", name, "--seconds", str(args.seconds)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        runs = [
            line for line in done.stderr.splitlines() if line.startswith(("Done", "stat::number"))
        ]
        print(f"{name}: {'; '.join(runs) or 'ended early'}", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stdout[-2000:] + done.stderr[-4000:], flush=True)
    sys.exit(f"findings in: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
