"""Numbers from 0 on in an unsigned type, as Inductor's passes write them: eager cannot make those, and regions run in
eager too."""

from __future__ import annotations

import torch
from torch.fx import Graph

IOTA = torch.ops.prims.iota.default
CONVERT = torch.ops.prims.convert_element_type.default
NOT_IN_EAGER = (torch.uint16, torch.uint32, torch.uint64)


def count_in_signed(graph: Graph) -> None:
    """Have such numbers made as int64 and converted, in place."""
    for node in graph.find_nodes(op="call_function", target=IOTA):
        dtype = node.kwargs["dtype"]
        if dtype not in NOT_IN_EAGER or "val" not in node.meta:
            continue
        with graph.inserting_before(node):
            signed = graph.call_function(IOTA, node.args, {**node.kwargs, "dtype": torch.int64})
            converted = graph.call_function(CONVERT, (signed, dtype))
        signed.meta.update(node.meta)
        signed.meta["val"] = node.meta["val"].to(torch.int64)
        converted.meta.update(node.meta)
        node.replace_all_uses_with(converted)
        graph.erase_node(node)
