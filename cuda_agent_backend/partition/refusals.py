"""Why a region is left to Inductor."""

from __future__ import annotations

import torch
from torch.fx import Node

from cuda_agent_backend.operators.kinds import (
    Kind,
)
from cuda_agent_backend.partition.node_values import (
    device_of,
    is_overlapping,
    is_symbolic,
)
from cuda_agent_backend.partition.region import Region
from sandbox.task.specs import ITEM_SIZES


def why_not(region: Region, kinds: dict[Node, Kind], min_bytes: int) -> str | None:
    """Why a region is not a candidate; None where it is. min_bytes: what it must move."""
    values = [node.meta.get("val") for node in (*region.nodes, *region.inputs)]
    if any(is_symbolic(value) for value in values):
        return "symbolic sizes"
    if any(kinds[node] is Kind.RANDOM for node in region.nodes):
        return "random numbers"
    for node in (*region.inputs, *region.outputs):
        if reason := _unfit(node):
            return reason
    devices = {device_of(node) for node in (*region.nodes, *region.inputs)}
    if len(devices) > 1:
        return f"several devices: {', '.join(sorted(f'{kind}:{index}' for kind, index in devices))}"
    if region.target not in ("cpu", "cuda"):
        return f"device {region.target}"
    if all(kinds[node] in (Kind.VIEW, Kind.CONSTANT) for node in region.nodes):
        return "views only"
    if not region.inputs:
        return "no inputs"
    alone = all(kinds[n] in (Kind.VIEW, Kind.PRODUCT) and not _has_addend(n) for n in region.nodes)
    if alone and region.target == "cpu":
        return "a matrix product alone, which a library runs"
    if any(is_overlapping(node.meta["val"]) for node in region.outputs):
        return "an output whose elements share memory"
    if region.moved < min_bytes:
        return f"it moves {region.moved} bytes, less than {min_bytes}"
    return None


def _has_addend(node: Node) -> bool:
    return node.target in (torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default)


def _unfit(node: Node) -> str | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return f"{node.name} is not a tensor"
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in ITEM_SIZES:
        return f"dtype {dtype}"
    return "an empty tensor" if value.numel() == 0 else None
