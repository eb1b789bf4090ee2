"""Decomposition of operators that Inductor would leave to a library, in graphs from Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.amp.autocast_mode import _enter_autocast
from torch.fx import GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from cuda_agent_backend.frontend import bilinear, encoder_layers
from cuda_agent_backend.frontend.recurrent_modules import autocast_is_on

DECOMPOSITIONS: dict[
    Any, tuple[torch.FunctionSchema, Callable[[dict[str, Any]], bool], Callable[..., Any]]
]
DECOMPOSITIONS = {
    encoder_layers.ENCODER_LAYER: (
        encoder_layers.SCHEMA, encoder_layers.is_plain, encoder_layers.write_out,
    ),
    torch.bilinear: (bilinear.SCHEMA, bilinear.is_small, bilinear.write_out),
}  # fmt: skip
"""By what is called: its arguments, whether it is to be written out, and how, with proxies by these names."""


def decompose(gm: GraphModule) -> bool:
    """Write out what can be, in place; whether that is anything.

    Nothing is under autocast, which has rules for each operator: the parts would be cast otherwise than the whole.
    """
    if autocast_is_on() or any(node.target is _enter_autocast for node in gm.graph.nodes):
        return False
    write_out = [_write_out(gm, node) for node in list(gm.graph.nodes)]
    if any(write_out):
        gm.graph.lint()
        gm.recompile()
    return any(write_out)


def _write_out(gm: GraphModule, node: Node) -> bool:
    if node.op != "call_function" or node.target not in DECOMPOSITIONS:
        return False
    schema, is_known, write = DECOMPOSITIONS[node.target]
    given = _arguments(node, schema)
    if not is_known(given):
        return False
    tracer = GraphAppendingTracer(gm.graph)
    with gm.graph.inserting_before(node):
        proxies = {n: Proxy(v, tracer) if isinstance(v, Node) else v for n, v in given.items()}
        made: Node = write(**proxies).node
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
    return True


def _arguments(node: Node, schema: torch.FunctionSchema) -> dict[str, Any]:
    """By name, with the schema's defaults."""
    given = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    given |= zip((a.name for a in schema.arguments), node.args, strict=False)
    return given | node.kwargs
