"""What the tasks of `benchmarks/practice_large` hold, from tensors without memory: the table of its README.

    python -m benchmarks.practice_large_table

Bytes of inputs and weights, of outputs, and the most that eager mode holds at once with all of them: storages count
while they live. What libraries take as workspace is not in it, as no tensor says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cuda_agent_backend.bench.sizes import Held, held_by
from cuda_agent_backend.tools.load_model import BadTarget, import_file

FOLDER = Path(__file__).parent / "practice_large"
README = FOLDER / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
GB = 1e9
COLUMNS = ("task", "inputs and weights, GB", "outputs, GB", "eager's peak, GB")


def files() -> list[Path]:
    """The task files, by name."""
    return sorted(FOLDER.glob("*/*.py"))


def row(name: str, held: Held) -> str:
    """A task's line."""
    numbers = (held.given, held.outputs, held.peak)
    return f"| {name} | " + " | ".join(f"{number / GB:.2f}" for number in numbers) + " |"


def table(paths: Iterable[Path]) -> str:
    """The whole table. Raises `ValueError` where a file cannot be imported."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for path in paths:
        module = import_file(path)
        if isinstance(module, BadTarget):
            raise ValueError(f"{path}: {module.reason}")
        lines.append(row(f"{path.parent.name}/{path.stem}", held_by(module)))
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """A text with the table in place of what is between the two marks. Raises `ValueError` where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the marks {BEGIN!r} and {END!r} are not both there")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8"), table(files())), "utf-8")
