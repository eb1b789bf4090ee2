"""What an operator of a task may be called with."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MESSAGE = 600


class TaskError(ValueError):
    """A task that cannot be: malformed text, a dangling reference, an operator this torch does
    not have. The message is cut where it repeats a long value.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ...")


@dataclass(frozen=True)
class NodeRef:
    """The result of a node; `output` selects one of several results (None: the only one, or the
    list as a whole).
    """

    node: int
    output: int | None = None


@dataclass(frozen=True)
class InputRef:
    """An input of the task."""

    index: int


@dataclass(frozen=True)
class DType:
    """A torch dtype by name, for instance "float32"."""

    name: str


@dataclass(frozen=True)
class Device:
    """The device of the task's target."""


@dataclass(frozen=True)
class MemoryFormat:
    """A torch memory format by name, for instance "channels_last"."""

    name: str


@dataclass(frozen=True)
class Layout:
    """A torch layout by name; "strided" in practice."""

    name: str


Arg = (
    NodeRef
    | InputRef
    | DType
    | Device
    | MemoryFormat
    | Layout
    | bool
    | int
    | float
    | str
    | None
    | tuple["Arg", ...]
)
