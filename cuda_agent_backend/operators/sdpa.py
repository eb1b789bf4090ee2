"""Attention that is written out: two products of batches of matrices, and a softmax between them.

Torch itself writes it out where no kernel of a library takes the arguments, as in float32 with heads of keys and values
that several heads of queries share. It scales queries and keys, copies what is shared, multiplies, adds a mask, takes
the softmax (with zeros for a row that is minus infinity throughout) and multiplies again, the scores in memory each
time. Here that is found again, in a graph or in a task; what is copied or scaled is looked through. Models that are
written by hand do the same, and fill the scores of hidden keys with a number instead of adding a mask, or bound scores
by a hyperbolic tangent first.

Of products in half precision the softmax is mostly one of float32, and scores may be brought to that earlier: such
changes of the dtype are looked through, as what lies between the products is not in memory any more, nor rounded.

Unlike in an operator of attention, a key that a mask hides is multiplied all the same: of what is not finite there
eager mode makes NaN, and so must a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import (
    argument,
    dtype_of,
    is_tensor,
    name_of,
    shape_of,
)
from cuda_agent_backend.graph.strides import (
    length,
    reshaped,
    single,
    steps_of,
)
from cuda_agent_backend.operators.look_through import MOST, Chain, factor_of, multiplies
from cuda_agent_backend.operators.masked_operands import (
    is_constant,
    leaves_earlier_keys,
    says_of_keys,
    value_of,
)
from cuda_agent_backend.operators.softmax import softmax_of
from cuda_agent_backend.operators.strided_matrices import (
    Matrices,
    Operand,
    head_steps,
    is_readable,
    splits,
)

LARGEST_HEAD = 256
FEWEST_QUERIES = 16
"""A block of the kernel takes 64 of them: for very few it reads keys and values by too few blocks."""
SMALLEST_WORK = 1 << 20
LARGEST_BOUND = {torch.float32: MOST, torch.float16: 1024.0, torch.bfloat16: 1024.0}
"""Of scores: their tangents err by 1e-7 where products are of half precision, and they by so many times as much."""


@dataclass(frozen=True)
class Sdpa:
    """An attention. ``inner``: the nodes that nothing else needs, but for the last one, which makes the result.

    dtype: of both products. guarded: a row of masked keys is 0, and not NaN. early: the part of the scale that operands
    are multiplied by. fill: what the scores of hidden keys are, where they are not added to; hides: the value of a
    boolean mask that hides, None of one that is added. cap: scores are ``cap tanh(score)`` before that; None as
    they are.
    """

    inner: frozenset[Node]
    dtype: torch.dtype
    batches: int
    heads: int
    shared_heads: int
    queries: int
    keys: int
    size: int
    scale: float
    early: float
    causal: bool
    guarded: bool
    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None
    fill: float | None = None
    hides: bool | None = None
    cap: float | None = None


@dataclass(frozen=True)
class _Scores:
    """The first product, what is added to it, the shape in which that is done, and which of the sums are not used."""

    product: Node
    shape: tuple[int, ...]
    mask: Node | None
    hidden: _Hidden | None


@dataclass(frozen=True)
class _Hidden:
    """The number that takes the place of scores where ``mask`` is what ``hides`` says."""

    mask: Node
    fill: float
    hides: bool


def sdpa_of(last: Node, whole: bool) -> Sdpa | None:
    """The attention whose result ``last`` is.

    whole: there is nothing else in its graph, so that what several of its nodes read is its own.
    """
    if not multiplies(last):
        return None
    ours = (lambda n: n.op == "call_function") if whole else (lambda n: len(n.users) == 1)
    chain = Chain(ours, last.meta["val"].device, dtype_of(last))
    softened = softmax_of(_weights(last, chain), chain)
    scores = None if softened is None else _scores(softened[0], chain)
    if softened is None or scores is None:
        return None
    late = chain.scale
    query, key = (chain.source(node) for node in scores.product.args)  # type: ignore[arg-type]
    scale, chain.scale = chain.scale, 1.0
    value = chain.source(last.args[1])  # type: ignore[arg-type]
    if query is None or key is None or value is None or chain.scale != 1.0:
        return None
    chain.inner.add(scores.product)
    own = {*chain.inner, last}
    if not whole and any(user not in own for node in chain.inner for user in node.users):
        return None
    found = _formed(query, key.transposed, value, scores)
    bound = 1.0 if chain.cap is None else chain.cap
    fits = 1 / MOST**2 < scale < MOST**2 and 1 / MOST < bound <= LARGEST_BOUND[chain.dtype]
    if found is None or not fits:
        return None
    return replace(
        found,
        inner=frozenset(chain.inner),
        scale=scale,
        early=scale / late,
        guarded=softened[1],
        cap=chain.cap,
    )


def _weights(last: Node, chain: Chain) -> Node:
    """The softmax that a product reads."""
    node: Node = last.args[0]  # type: ignore[assignment]
    while factor_of(node) is None and (read := chain.multiple_of(node)) is not None:
        chain.inner.add(node)
        node = read
    return node


def _scores(node: Node, chain: Chain) -> _Scores | None:
    hidden, mask, casts = None, None, chain.casts_to(node)
    node = chain.uncast(node)
    if name_of(node) == "where":
        narrow = chain.dtype in map(dtype_of, (node, *casts))
        hidden, scores = _hidden(node, chain.dtype if narrow else torch.float32)
        if hidden is None or scores is None or shape_of(scores) != shape_of(node):
            return None
        chain.inner.add(node)
        node = chain.uncast(scores)
    shape = shape_of(node)
    if name_of(node) == "add" and argument(node, "alpha") == 1:
        parts = [n for n in node.args if isinstance(n, Node) and is_tensor(n)]
        inward = [n for n in parts if chain.multiplies(replace(chain, inner=set()).product(n))]
        if len(parts) != 2 or len(inward) != 1 or shape_of(inward[0]) != shape:
            return None
        chain.inner.add(node)
        mask = parts[parts[0] is inward[0]]
        node = inward[0]
    product = chain.product(node)
    return _Scores(product, shape, mask, hidden) if chain.multiplies(product) else None


def _hidden(node: Node, dtype: torch.dtype) -> tuple[_Hidden | None, Node | None]:
    """What hides scores, and these, where a node fills some of them with a constant, which is rounded to that dtype."""
    mask, *values = (argument(node, name) for name in ("condition", "self", "other"))
    filled = [value_of(v) for v in values]
    hides = filled[0] is not None
    fill, scores = filled[not hides], values[hides]
    if not isinstance(fill, int | float) or not isinstance(scores, Node):
        return None, None
    rounded = torch.tensor(float(fill), dtype=dtype, device="cpu").item()
    return _Hidden(mask, rounded, hides), scores


def _formed(query: Matrices, key: Matrices, value: Matrices, scores: _Scores) -> Sdpa | None:
    """The attention but for its scale, its guard and its nodes."""
    count, queries, keys = shape_of(scores.product)
    size = length(query.columns)
    if not (query.even and key.even and value.even) or length(value.columns) != size:
        return None
    # a softmax along anything else, behind a view, is no attention's
    if scores.shape[-2:] != (queries, keys) or not _pays(count, queries, keys, size):
        return None
    causal, read = _what_masks(scores, queries, keys)
    mask = None if len(read) != 1 else _mask(read[0], scores, count)
    if len(read) > 1 or (read and mask is None):
        return None
    hidden = scores.hidden
    for batches, group in splits(count, (query, key, value)):
        q = head_steps(query.batch, batches, count // batches, 1)
        k, v = (head_steps(m.batch, batches, count // batches, group) for m in (key, value))
        added = (0, 0) if mask is None else head_steps(mask.batch, batches, count // batches, 1)
        if q is None or k is None or v is None or added is None:
            continue
        heads = count // batches
        return Sdpa(
            frozenset(), dtype_of(scores.product), batches, heads, heads // group,
            queries, keys, size, 1.0, 1.0, causal, False,
            query.operand(q), key.operand(k), value.operand(v), None if mask is None else mask.operand(added),
            None if hidden is None else hidden.fill,
            hidden.hides if hidden is not None and hidden.mask in read else None,
        )  # fmt: skip
    return None


def _what_masks(scores: _Scores, queries: int, keys: int) -> tuple[bool, list[Node]]:
    """Whether queries see keys up to their own place only, and the masks that a kernel has to read."""
    added, hidden = scores.mask, scores.hidden
    causal, read = False, []
    if added is not None:
        causal = hidden is None and is_constant(added) and leaves_earlier_keys(added, queries, keys)
        read += [] if causal else [added]
    if hidden is not None:
        seen = says_of_keys(hidden.mask, queries, keys)
        read += [] if seen is not None and seen is not hidden.hides else [hidden.mask]
        causal = causal or hidden.mask not in read
    return causal, read


def _pays(count: int, queries: int, keys: int, size: int) -> bool:
    fits = size % 8 == 0 and size <= LARGEST_HEAD and queries >= FEWEST_QUERIES
    return fits and count * queries * keys * size >= SMALLEST_WORK


def _mask(node: Node, scores: _Scores, count: int) -> Matrices | None:
    """What is added to scores in their product's dtype, or says which are hidden, as a batch of matrices."""
    value, shape = node.meta["val"], scores.shape
    dtype = dtype_of(scores.product) if node is scores.mask else torch.bool
    device = scores.product.meta["val"].device
    if value.dtype != dtype or not is_readable(value, device):
        return None
    expanded = value.expand(shape)
    steps = reshaped(steps_of(shape, expanded.stride()), (count, *shape[-2:]))
    if steps is None or single(steps[1]) is None or single(steps[2]) is None:
        return None
    return Matrices(node, *steps)
