"""Operators that Inductor leaves to the library, in graphs from Dynamo: taken apart, so that they are compiled."""

from __future__ import annotations

import torch
from torch.amp.autocast_mode import _enter_autocast
from torch.fx import GraphModule

from cuda_agent_backend import bilinear, encoder_layers


def take_apart(gm: GraphModule) -> bool:
    """Write out what can be, in place; whether that is anything. Under autocast, which has rules for each operator,
    nothing is: its parts would be cast otherwise than the whole."""
    if _casts(gm):
        return False
    written = [write_out(gm) for write_out in (encoder_layers.write_out, bilinear.write_out)]
    return any(written)


def _casts(gm: GraphModule) -> bool:
    around = any(torch.is_autocast_enabled(device) for device in ("cuda", "cpu"))
    return around or any(node.target is _enter_autocast for node in gm.graph.nodes)
