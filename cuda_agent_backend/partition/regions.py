"""The regions of a post-grad graph: which parts a kernel may replace, and why the others are left.

Every node gets a level: the number of barriers (library calls and the like) that must run before it. Fusible nodes of
one level never have a barrier between them. So any connected set of them is convex, and the graph stays without cycles
when all such sets are replaced.

* A matrix product that our families cover starts a level. It is fused with what follows it, one to a region (or two of
  one operand), and with copies, masks, constant factors and quantised forms of its operands (`copies`,
  `operand_scales`, `dequantize`). The gradients of a convolution are such products.
* An attention, a sort or a recurrent layer starts a level and is a region of its own; so is an attention that is
  written out as several operators (`sdpa`, `back_to_back`), with all of them, and a scatter with what makes its values
  (`scatter_producers`).
* What is beside a product is offered as well, as its region's rest, for where a library is left to run the product.
* A product that a rewrite does away with is fusible like any other node.
* A fusible node whose users all lie on higher levels is moved up to them when that saves traffic.
* Views on the fringe of a region stay outside. No view is ever an output: what it views is put out instead.
* What random numbers alone decide stays outside too (`rng_nodes`): it comes before all that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch.fx import Graph, Node

from cuda_agent_backend.operators.kinds import Kind
from cuda_agent_backend.operators.scatters import VIEWS_OF_AN_INDEX, scatter_operands
from cuda_agent_backend.operators.sdpa import Sdpa
from cuda_agent_backend.partition.analysis import SINGLE_OPERATORS, Analysis
from cuda_agent_backend.partition.node_values import (
    device_of,
    is_selection,
    size_in_bytes,
)
from cuda_agent_backend.partition.pieces import halves_of, pieces_of
from cuda_agent_backend.partition.refusals import why_not
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.rewrite.vanishing import vanishes_within
from sandbox.plan import plan

MAX_INPUTS, MAX_OUTPUTS = 12, 4
"""Of regions of loop nests: with more of them there is more to be read than is saved by one kernel."""
SMALL = 16
"""Inputs so many times as small as the largest one do not count, nor do such outputs: statistics of a batch norm."""
CONVERSIONS = (torch.ops.prims.convert_element_type.default, torch.ops.aten.clone.default)
"""Of dtype and layout: Inductor makes them part of whatever is beside them."""


def partition(graph: Graph, *, min_bytes: int = 0) -> list[Region]:
    """All regions of a graph in order of their first node, with those that are left to Inductor.

    A product that would vanish only together with what has come into another region is one like any other.
    """
    lasting: set[Node] = set()
    while True:
        analysis = Analysis(graph, lasting)
        regions: list[Region] = []
        for part in analysis.components(analysis.members, analysis.level):
            for piece in pieces_of(part, analysis):
                regions.extend(_regions_of(piece, analysis, min_bytes))
        found = {node for region in regions for node in _lasting(region, analysis.kinds)}
        if not found:
            return sorted(regions, key=lambda region: analysis.position[region.nodes[0]])
        lasting |= found


def _lasting(region: Region, kinds: Mapping[Node, Kind]) -> list[Node]:
    """The products of a region that would vanish if more of the graph were in it."""
    nodes = set(region.nodes)
    return [
        n
        for n in region.nodes
        if kinds[n] is Kind.VANISHING and not vanishes_within(n, nodes, region.outputs)
    ]


def _regions_of(part: list[Node], analysis: Analysis, min_bytes: int) -> list[Region]:
    """The region of a component, or the regions that it is split into because it has too many inputs or outputs."""
    region = _region(part, analysis, min_bytes)
    if region is None:
        return []
    alone = any(analysis.kinds[node] in SINGLE_OPERATORS for node in part)
    if _fits(region, plan.MAX_INPUTS if alone else MAX_INPUTS):
        return [replace(region, rest=_rest(region, part, analysis, min_bytes))]
    halves = halves_of(part) if region.reason is None else None
    if halves is None:
        wide = f"{len(region.inputs)} inputs and {len(region.outputs)} outputs are too many"
        return [replace(region, reason=region.reason or wide)]
    return [
        made
        for half in halves
        for piece in analysis.components(half, dict.fromkeys(half, 0))
        for made in _regions_of(piece, analysis, min_bytes)
    ]


def _fits(region: Region, most_inputs: int) -> bool:
    """Whether there are not too many inputs and outputs for one kernel, and for a plan."""
    within = len(region.inputs) <= plan.MAX_INPUTS and len(region.outputs) <= plan.MAX_OUTPUTS
    return within and _large(region.inputs) <= most_inputs and _large(region.outputs) <= MAX_OUTPUTS


def _large(nodes: Sequence[Node]) -> int:
    """How many of some values count."""
    sizes = list(map(size_in_bytes, nodes))
    return sum(SMALL * size >= max(sizes) for size in sizes)


def _rest(region: Region, part: list[Node], analysis: Analysis, min_bytes: int) -> Region | None:
    """What is beside a region's product, in one piece, for all of it reads the product.

    None where that is no region, or a single operator, which is one kernel of Inductor's in any case.
    """
    beside = [node for node in part if analysis.kinds[node] is not Kind.PRODUCT]
    if region.reason is not None or len(beside) == len(part):
        return None
    rest = list(analysis.without_fringe(beside))
    if sum(_computes(node, analysis.kinds) for node in rest) < 2:
        return None
    found = _region(rest, analysis, min_bytes)
    return found if found is not None and found.reason is None else None


def _computes(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """Whether a node makes values, rather than picking, viewing or converting them."""
    computing = kinds[node] in (Kind.COMPUTE, Kind.VANISHING)
    return computing and not is_selection(node) and node.target not in CONVERSIONS


def _region(part: list[Node], analysis: Analysis, min_bytes: int) -> Region | None:
    alone = any(analysis.kinds[node] in SINGLE_OPERATORS for node in part)
    alone = alone and analysis.attentions.keys().isdisjoint(part)
    nodes = part if alone else _with_shared(_with_index(part, analysis), analysis)
    own, inner = set(nodes), set(part)
    inputs = list(dict.fromkeys(r for n in nodes for r in n.all_input_nodes if r not in own))
    outputs = _outputs(part, inner, analysis.kinds)
    if not outputs:
        return None
    target = device_of(outputs[0])[0]
    moved = sum(map(size_in_bytes, (*inputs, *outputs)))
    region = Region(tuple(nodes), tuple(inputs), tuple(outputs), target, moved)
    reason = why_not(region, analysis.kinds, min_bytes)
    return replace(region, reason=reason)


def _with_index(part: list[Node], analysis: Analysis) -> list[Node]:
    """The part and, for a scatter, what its index is a view of: mostly one index for many values."""
    found = list(part)
    for node in part:
        if analysis.kinds[node] is Kind.SCATTER:
            scatter = scatter_operands(node)
            assert scatter is not None
            index = scatter.index
            while index.target in VIEWS_OF_AN_INDEX:
                found.append(index)
                index = index.all_input_nodes[0]
    return found


def _with_shared(part: list[Node], analysis: Analysis) -> list[Node]:
    """The part and what every region has for itself: constants that it needs, copies and codes that its products read
    through, the backward of a convolution of which it has a gradient, the values of a scatter. Not the mask that an
    attention reads."""
    found = set(part)
    attentions = (analysis.attentions.get(node) for node in part)
    masks = {a.mask.node for a in attentions if isinstance(a, Sdpa) and a.mask is not None}
    waiting = list(part)
    while waiting:
        for read in waiting.pop().all_input_nodes:
            shared = analysis.kinds[read] is Kind.CONSTANT or read in analysis.shared
            if shared and read not in found and read not in masks:
                found.add(read)
                waiting.append(read)
    return analysis.in_order(found)


def _outputs(part: list[Node], inner: set[Node], kinds: dict[Node, Kind]) -> list[Node]:
    """Values needed outside. A view needed outside is made there from the value it views."""
    needed: dict[Node, None] = {}
    outside: set[Node] = set()
    for node in reversed(part):
        used = any(user not in inner or user in outside for user in node.users)
        if not used:
            continue
        if kinds[node] is Kind.VIEW or not isinstance(node.meta.get("val"), torch.Tensor):
            if kinds[node] is Kind.VIEW:
                outside.add(node)
        else:
            needed[node] = None
    return list(reversed(needed))
