"""A captured graph of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule


@dataclass
class CapturedGraph:
    """A post-grad graph.

    recorded: folders with the real inputs of its tasks, by task digest. inputs: the folder with its own, in the order
    of its placeholders; "" if they were not recorded. static_inputs: see `runtime.replayable`.
    """

    module: GraphModule
    recorded: dict[str, str] = field(default_factory=dict)
    inputs: str = ""
    static_inputs: tuple[int, ...] | None = None
