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

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import (
    argument,
    dtype_of,
    is_tensor,
    is_view,
    is_zero,
    name_of,
    number,
    shape_of,
)
from cuda_agent_backend.graph.strides import (
    Dim,
    Steps,
    length,
    moved,
    moves,
    reshaped,
    shared,
    single,
    steps_of,
)
from cuda_agent_backend.operators.masked_operands import (
    MINUS_INFINITY,
    is_constant,
    leaves_earlier_keys,
    says_of_keys,
    value_of,
)

LARGEST_HEAD = 256
FEWEST_QUERIES = 16
"""A block of the kernel takes 64 of them: for very few it reads keys and values by too few blocks."""
SMALLEST_WORK = 1 << 20
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST = float(1 << 30)
"""That is multiplied by: an operand of up to 2^60 stays a number."""
LARGEST_BOUND = {torch.float32: MOST, torch.float16: 1024.0, torch.bfloat16: 1024.0}
"""Of scores: their tangents err by 1e-7 where products are of half precision, and they by so many times as much."""


@dataclass(frozen=True)
class Operand:
    """What is read, and elements between neighbours of each dimension (batch, head, row, column)."""

    node: Node
    steps: tuple[int, ...]


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


@dataclass
class _Chain:
    """What is looked through. ``ours``: whether a node may be taken in with what follows it. ``device``: of all.
    ``dtype``: of the products."""

    ours: Callable[[Node], bool]
    device: torch.device
    dtype: torch.dtype
    inner: set[Node] = field(default_factory=set)
    scale: float = 1.0
    cap: float | None = None

    def product(self, node: Node) -> Node:
        """What scores are a multiple of, or of its hyperbolic tangent: then ``cap`` is what that is multiplied by."""
        node = self.through(node)
        if name_of(node) == "tanh":
            self.cap, self.scale = self.scale, 1.0
            self.inner.add(node)
            node = self.through(node.all_input_nodes[0])
        return node

    def through(self, node: Node) -> Node:
        """What a node is a multiple of, elements in their order."""
        while (read := self.multiple_of(node)) is not None:
            self.scale *= _factor(node) or 1.0
            self.inner.add(node)
            node = read
        return node

    def uncast(self, node: Node) -> Node:
        """What a node is, in another dtype."""
        passed = self.casts_to(node)
        self.inner |= set(passed)
        return passed[-1].all_input_nodes[0] if passed else node

    def casts_to(self, node: Node) -> list[Node]:
        """The last changes of the dtype that make a node, the last one first."""
        found = []
        while self.casts(node):
            found.append(node)
            node = node.all_input_nodes[0]
        return found

    def multiple_of(self, node: Node) -> Node | None:
        """What a node is a view or a multiple of, elements in their order."""
        return node.all_input_nodes[0] if self.casts(node) else _multiple_of(node)

    def casts(self, node: Node) -> bool:
        """Whether a node has what products in half precision are made of, or make, in float32, or the other way."""
        if self.dtype == torch.float32 or name_of(node) != "convert_element_type":
            return False
        read = node.all_input_nodes[0]
        both = is_tensor(node) and is_tensor(read)
        return both and {dtype_of(node), dtype_of(read)} == {self.dtype, torch.float32}

    def multiplies(self, node: Node) -> bool:
        """Whether a node is a product of batches, as the other one is."""
        return _multiplies(node) and dtype_of(node) == self.dtype

    def source(self, node: Node) -> Matrices | None:
        """What an operand of a product is copied or scaled from, and how it lies there."""
        passed = []
        while self.ours(node) and (moves(node) or _factor(node) is not None):
            self.scale *= _factor(node) or 1.0
            passed.append(node)
            node = node.all_input_nodes[0]
        self.inner |= set(passed)
        value = node.meta["val"]
        if not is_readable(value, self.device):
            return None
        steps: Steps | None = steps_of(value.shape, value.stride())
        for step in reversed(passed):
            if steps is not None and moves(step):
                steps = moved(steps, step)
        return None if steps is None else Matrices(node, *steps)


@dataclass(frozen=True)
class Matrices:
    """A batch of matrices, as a product reads them."""

    node: Node
    batch: Dim
    rows: Dim
    columns: Dim

    @property
    def transposed(self) -> Matrices:
        return Matrices(self.node, self.batch, self.columns, self.rows)

    @property
    def even(self) -> bool:
        """Whether columns lie next to each other, and rows at one distance."""
        return single(self.rows) is not None and single(self.columns) == 1

    def operand(self, heads: tuple[int, int]) -> Operand:
        """heads: the steps of batches and heads."""
        return Operand(self.node, (*heads, single(self.rows) or 0, single(self.columns) or 0))


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
    if not _multiplies(last):
        return None
    ours = (lambda n: n.op == "call_function") if whole else (lambda n: len(n.users) == 1)
    chain = _Chain(ours, last.meta["val"].device, dtype_of(last))
    softened = _softened(_weights(last, chain), chain)
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


def _weights(last: Node, chain: _Chain) -> Node:
    """The softmax that a product reads."""
    node: Node = last.args[0]  # type: ignore[assignment]
    while _factor(node) is None and (read := chain.multiple_of(node)) is not None:
        chain.inner.add(node)
        node = read
    return node


def is_readable(value: torch.Tensor, device: torch.device) -> bool:
    """Whether a kernel on that device can read a tensor, which lies in memory as its strides say."""
    fixed = all(type(n) is int for n in (*value.shape, *value.stride()))
    return fixed and value.device == device


def _multiplies(node: Node) -> bool:
    """Whether a node is a product of batches, in a dtype that kernels take."""
    plain = node.target is torch.ops.aten.bmm.default and len(node.args) == 2 and not node.kwargs
    return plain and is_tensor(node) and dtype_of(node) in DTYPES


def _multiple_of(node: Node) -> Node | None:
    """What a node is a view or a multiple of, elements in their order."""
    read = node.args[0] if node.args else None
    if not isinstance(read, Node) or not is_tensor(node):
        return None
    same = name_of(node) == "expand" and shape_of(node) == shape_of(read)
    return read if same or is_view(node) or _factor(node) is not None else None


def _factor(node: Node) -> float | None:
    """The positive number that a node multiplies its one operand by."""
    if name_of(node) not in ("mul", "div") or len(node.args) != 2 or node.kwargs:
        return None
    read, factor = node.args[0], number(node.args[1])
    if factor is None or not 1 / MOST < factor < MOST or not isinstance(read, Node):
        return None
    if dtype_of(node) != dtype_of(read):
        return None
    return factor if name_of(node) == "mul" else 1 / factor


def _softened(node: Node, chain: _Chain) -> tuple[Node, bool] | None:
    """The scores of which ``node`` is the softmax along the last dimension, and whether rows of masked keys are 0."""
    guard, weights = None, node
    if name_of(node) == "where":
        guard, zero, weights = (argument(node, name) for name in ("condition", "self", "other"))
        if not is_zero(zero) or not isinstance(weights, Node):
            return None
    raised, total = _operands(weights, "div")
    shifted, _ = _operands(raised, "exp")
    scores, highest = _operands(shifted, "sub")
    if scores is None:
        return None
    joined = _joined(highest, total, scores)
    apart = _along_rows(total, "sum", raised) and _along_rows(highest, "amax", scores)
    if joined is None and not apart:
        return None
    passed = [] if guard is None else _guarding(guard, scores)
    if passed is None:
        return None
    taken = (node, weights, raised, total, shifted, highest, joined, *passed)
    chain.inner |= {n for n in taken if n is not None}
    return scores, guard is not None


def _operands(node: Node | None, name: str) -> tuple[Node | None, Node | None]:
    """Up to two operands of a call of that name, None where there is none or another call."""
    if node is None or name_of(node) != name or node.kwargs:
        return None, None
    first, second, *_ = (*node.args, None)
    return (
        first if isinstance(first, Node) else None,
        second if isinstance(second, Node) else None,
    )


def _along_rows(node: Node | None, name: str, of: Node | None) -> bool:
    """Whether a node reduces the last dimension of another one and keeps it."""
    if node is None or name_of(node) != name or node.args[0] is not of:
        return False
    dims, rank = argument(node, "dim"), len(shape_of(node))
    listed = [dims] if isinstance(dims, int) else list(dims or ())
    kept, dtype = argument(node, "keepdim"), argument(node, "dtype")
    return kept is True and dtype is None and [d % rank for d in listed] == [rank - 1]


def _joined(highest: Node | None, total: Node | None, scores: Node) -> Node | None:
    """The operator that gives both maximum and sum of the scores' rows, as Inductor writes a softmax on GPUs."""
    both = [n for n in (highest, total) if n is not None and n.target is operator.getitem]
    if [n.args[1] for n in both] != [0, 1] or both[0].args[0] is not both[1].args[0]:
        return None
    joined = both[0].all_input_nodes[0]
    read, dim, *_ = (*joined.args, None, None)
    online = "prepare_softmax_online" in str(joined.target)
    return joined if online and read is scores and dim in (-1, len(shape_of(scores)) - 1) else None


def _guarding(guard: object, scores: Node) -> list[Node] | None:
    """The nodes of ``not any(not scores == -inf)`` along rows; None where that is something else."""
    passed: list[Node] = []
    for name in ("logical_not", "any", "logical_not", "eq"):
        if not isinstance(guard, Node) or name_of(guard) != name:
            return None
        passed.append(guard)
        guard = guard.args[0]
    _, reduced, hidden, compared = passed
    right = guard is scores and compared.args[1] == MINUS_INFINITY
    return passed if right and _along_rows(reduced, "any", hidden) else None


def _scores(node: Node, chain: _Chain) -> _Scores | None:
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


def splits(count: int, operands: tuple[Matrices, ...]) -> Iterator[tuple[int, int]]:
    """Ways to take a batch of matrices as batches of heads: how many batches, and heads that share keys and values."""
    found = {1}
    for matrices in operands:
        product = 1
        for own, _ in matrices.batch:
            product *= own
            found.add(product)
    group = min(shared(matrices.batch) for matrices in operands[1:])
    for batches in sorted(found):
        for together in (group, 1):
            if count % (batches * together) == 0:
                yield batches, together


def head_steps(batch: Dim, batches: int, heads: int, group: int) -> tuple[int, int] | None:
    """The steps of batches and of heads, of which ``group`` neighbours share one; None where they are not even."""
    steps = reshaped((batch,), (batches, heads // group, group))
    if steps is None or (group > 1 and single(steps[2]) != 0):
        return None
    outer, inner = single(steps[0]), single(steps[1])
    return None if outer is None or inner is None else (outer, inner)
