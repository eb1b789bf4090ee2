"""The figures of a run: one JSON line a step, the truth that a resumed run goes on from; and TensorBoard beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cuda_agent_backend import log

NAME = "figures.jsonl"


class Figures:
    """Steps of one stage in a folder. Lines of steps after ``kept`` are of a run that was killed, and are removed."""

    def __init__(self, folder: Path, kept: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / NAME
        self.steps = read(self._path)[:kept]
        text = "".join(_line(step) for step in self.steps)
        if not self._path.exists() or self._path.read_text() != text:
            new = self._path.with_suffix(".new")
            new.write_text(text)
            new.replace(self._path)
        self._board = _board(folder, len(self.steps))

    def add(self, figures: Mapping[str, float]) -> None:
        """Keep the next step's. Raises OSError where the disk is full; what was kept before stays readable."""
        line = _line(figures).encode()
        with self._path.open("ab") as file:
            before = file.tell()
            try:
                file.write(line)
                file.flush()
            except OSError:
                os.truncate(self._path, before)
                raise
        self.steps.append(dict(figures))
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, len(self.steps))

    def begin(self, figures: Mapping[str, float]) -> None:
        """Have TensorBoard show what is known before the first step, as its step 0; no line is of it."""
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, 0)

    def close(self) -> None:
        """Write what TensorBoard has not."""
        if self._board is not None:
            self._board.close()


def read(path: Path) -> list[dict[str, float]]:
    """The whole lines of a file of figures; none where there is no file."""
    found: list[dict[str, float]] = []
    if not path.exists():
        return found
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            value = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            value = None
        if not isinstance(value, dict):
            break
        found.append({str(k): float(v) for k, v in value.items()})
    return found


def _line(figures: Mapping[str, float]) -> str:
    return json.dumps(dict(figures), sort_keys=True) + "\n"


def _board(folder: Path, steps: int) -> Any:
    """TensorBoard's writer, where it is installed; what it has of later steps is hidden."""
    if find_spec("tensorboard") is None:
        log.once(
            "train", 'no TensorBoard: pip install "cuda_agent[train]"; figures are in figures.jsonl'
        )
        return None
    from torch.utils.tensorboard import SummaryWriter

    make: Any = SummaryWriter
    return make(log_dir=str(folder / "tensorboard"), purge_step=steps + 1)
