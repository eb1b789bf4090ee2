"""Operators that Inductor leaves to the library, in graphs from Dynamo: taken apart, so that they are compiled."""

from __future__ import annotations

from torch.fx import GraphModule

from cuda_agent_backend import bilinear, encoder_layers


def take_apart(gm: GraphModule) -> None:
    """Write out what can be, in place."""
    encoder_layers.write_out(gm)
    bilinear.write_out(gm)
