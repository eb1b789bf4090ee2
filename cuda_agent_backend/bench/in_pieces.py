"""The float64 oracle of a large task in slices, so that its check holds little more than its inputs and outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from cuda_agent_backend.bench.traced import given_of, traced
from sandbox.accuracy.pieces import Piece
from sandbox.accuracy.sliced_oracle import SlicedOracle
from sandbox.memory.footprint import FRUGAL_BYTES, STEP_BYTES, peak_bytes, slice_bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OracleInPieces:
    """Of one model."""

    model: nn.Module
    sliced: SlicedOracle
    moved: int
    """Bytes of inputs, weights and outputs."""
    outputs: int
    eager: int
    """Bytes that eager mode takes beside inputs and weights while it runs, its outputs included."""

    @property
    def held_bytes(self) -> int:
        """What a check, and the calls that are timed after it, hold at most: one set of inputs, outputs of two ways to
        run the task, and beside the first what the second works out, or the comparison of both with a slice of the
        oracle."""
        compared = 2 * self.outputs + self.sliced.held_bytes + STEP_BYTES
        return self.moved + max(compared, self.eager)

    def pieces(self, inputs: Sequence[Any]) -> Iterator[Piece]:
        """The outputs for these inputs. Raises whatever torch raises, torch.OutOfMemoryError among it."""
        return self.sliced.pieces(given_of(self.model, inputs))


def oracle_in_pieces(
    model: nn.Module, inputs: Sequence[Any], least_bytes: int = FRUGAL_BYTES
) -> OracleInPieces | None:
    """What computes it, without gradients; None for a task of fewer bytes of inputs, weights and outputs, and where no
    graph can be had of the model, as where what it does depends on values: its oracle is whole then."""
    try:
        module = traced(model, inputs)
        end = module.graph.find_nodes(op="output")[0]
        outputs = [node.meta["val"] for node in end.args[0]]
        moved = sum(tensor.nbytes for tensor in (*given_of(model, inputs), *outputs))
        if moved < least_bytes:
            return None
        sliced, made = SlicedOracle(module, slice_bytes(moved)), sum(x.nbytes for x in outputs)
        return OracleInPieces(model, sliced, moved, made, peak_bytes(module.graph))
    except Exception as error:
        log.warning("the oracle is computed whole: %s: %s", type(error).__name__, error)
        return None
