"""What the tasks of `benchmarks/practice_large` hold, from tensors without memory: the table of its README.

    python -m benchmarks.practice_large_table

Bytes of inputs and weights, of outputs, and the most that eager mode holds at once with all of them: storages count
while they live. What libraries take as workspace is not in it, as no tensor says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cuda_agent_backend.tools.load_model import BadTarget, import_file

FOLDER = Path(__file__).parent / "practice_large"
README = FOLDER / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
GB = 1e9
COLUMNS = ("task", "inputs and weights, GB", "outputs, GB", "eager's peak, GB")


@dataclass(frozen=True)
class Held:
    """Bytes of one task. given: inputs and weights. peak: all that eager mode holds at once, those included.

    largest: of a single input, weight or output. elements: of the one with most elements.
    """

    given: int
    outputs: int
    peak: int
    largest: int
    elements: int

    @property
    def ends(self) -> int:
        """Inputs, weights and outputs together."""
        return self.given + self.outputs


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of storages from the operator that makes them until nothing refers to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.peak = 0, 0
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def count(self, value: Any) -> None:
        """Count a tensor's storage, once."""
        if not isinstance(value, Tensor):
            return
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known[key] = weakref.finalize(storage, self._gone, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)

    def _gone(self, key: int, size: int) -> None:
        del self._known[key]
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator and count what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self.count(leaf)
        return result


def files() -> list[Path]:
    """The task files, by name."""
    return sorted(FOLDER.glob("*/*.py"))


def held_by(module: ModuleType) -> Held:
    """The bytes of a task file, imported. Raises whatever its code raises on tensors without memory."""
    with FakeTensorMode(), torch.no_grad():
        model = module.Model(*module.get_init_inputs())
        given = [*module.get_inputs(), *model.parameters(), *model.buffers()]
        with LiveStorages() as counted:
            for tensor in given:
                counted.count(tensor)
            result = model(*given[: len(given) - len([*model.parameters(), *model.buffers()])])
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    every = [*given, *outputs]
    return Held(
        given=sum(map(_bytes, given)),
        outputs=sum(map(_bytes, outputs)),
        peak=counted.peak,
        largest=max(map(_bytes, every)),
        elements=max(tensor.numel() for tensor in every),
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.nbytes


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
