"""Back-to-back matrix products: ``f(Q K^T) V`` with pointwise work ``f`` between them, and no softmax.

``end(weigh(Q K^T) V, rows)``, where ``weigh`` makes a weight of a score and its place, of what is given for places, and
``end`` a result of what is mixed, its place and, where it is read, the sum of each row's weights. As with attention
that is written out (`sdpa`), the scores would go through memory; here all of it is found, in a graph or in a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import (
    argument,
    dtype_of,
    is_tensor,
    is_view,
    name_of,
    reduced_dims,
    shape_of,
)
from cuda_agent_backend.graph.strides import Dim, Steps, length, moved, moves, steps_of
from cuda_agent_backend.operators.kinds import Kind, kind_of_target
from cuda_agent_backend.operators.masked_operands import is_constant
from cuda_agent_backend.operators.strided_matrices import (
    Matrices,
    Operand,
    head_steps,
    is_readable,
    splits,
)

LARGEST_WIDTH = 128
FEWEST_ROWS = 64
SMALLEST_WORK = 1 << 20
SAVING = 2
"""How many times as large as all operands and the result the scores are at least: else little is saved."""
MOST_SCORES = 2**31 - 2**20
"""Places that 32 bits count."""
MOST_LEAVES = 8
"""Tensors that are read beside those of the products."""
MOST_OF_A_NUMBER = 16
"""Operators that make a number which all places of a matrix read: threads work it out, each for itself."""
GIVEN = ("placeholder", "get_attr")
READ = (torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int32, torch.int64)
PRINTED = frozenset(
    (
        "abs",
        "add",
        "clamp",
        "clamp_max",
        "clamp_min",
        "convert_element_type",
        "cos",
        "div",
        "eq",
        "exp",
        "exp2",
        "expm1",
        "ge",
        "gt",
        "le",
        "log",
        "log1p",
        "log2",
        "logical_and",
        "logical_not",
        "logical_or",
        "lt",
        "maximum",
        "minimum",
        "mul",
        "ne",
        "neg",
        "pow",
        "reciprocal",
        "relu",
        "rsqrt",
        "sigmoid",
        "sin",
        "sqrt",
        "sub",
        "tanh",
        "where",
    )
)
"""What such a number may be made of: all of it has a form in C++, so that no kernel is lost by what is taken in."""
PRODUCTS = (torch.ops.aten.bmm.default, torch.ops.aten.mm.default)


@dataclass(frozen=True)
class BackToBack:
    """``inner``: the nodes that nothing else needs, but for ``last``, which makes the result.

    product: the scores. weights: what is made of them, as the second product ``mixing`` reads it. sums: of the weights'
    rows.
    """

    inner: frozenset[Node]
    last: Node
    product: Node
    weights: Node
    mixing: Node
    sums: tuple[Node, ...]
    batches: int
    heads: int
    shared_heads: int
    queries: int
    keys: int
    size: int
    width: int
    query: Operand
    key: Operand
    value: Operand


def back_to_back_of(mixing: Node, whole: bool) -> BackToBack | None:
    """The rows that a product mixes by weights that are scores.

    whole: there is nothing else in its graph, so that what several of its nodes read is its own.
    """
    if not is_product(mixing):
        return None
    between = _Between.of(mixing)
    if between is None or not between.weighs:
        return None
    product = between.product
    operands = [_source(n, whole) for n in (*product.args, mixing.args[1])]  # type: ignore[arg-type]
    if any(o is None for o in operands):
        return None
    sources = [o for o in operands if o is not None]
    inward = {*between.own, *(n for o in sources for n in o.passed)}
    sums = tuple(between.sums())
    for ending in _endings(mixing, sums):
        own = inward | ending
        last = next(n for n in ending if not ending & n.users.keys())
        if all(user in own for node in own - {last} for user in node.users):
            parts = [o.matrices for o in sources]
            more = _of_matrices(own, {m.node for m in parts})
            choices = (own | more, own) if more else (own,)
            forms = (_formed(taken, last, between, sums, parts) for taken in choices)
            return next((form for form in forms if form is not None), None)
    return None


def is_product(node: Node) -> bool:
    """Whether a node is a product of matrices, or of batches of them, in float32, of float32."""
    plain = node.target in PRODUCTS and len(node.args) == 2 and not node.kwargs
    return plain and is_tensor(node) and dtype_of(node) == torch.float32


def is_pointwise(node: Node) -> bool:
    """Whether a node makes each element of a tensor of those at the same place."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not is_tensor(node):
        return False
    return torch.Tag.pointwise in target.tags and kind_of_target(target) is Kind.COMPUTE


def keeps_order(node: Node) -> bool:
    """Whether a node has the elements of its operand in their order."""
    if is_view(node):
        return True
    read = node.args[0] if node.args else None
    if name_of(node) not in ("expand", "clone") or not isinstance(read, Node):
        return False
    return is_tensor(node) and is_tensor(read) and shape_of(node) == shape_of(read)


@dataclass
class _Between:
    """What lies between two products: ``own`` nodes, the first product among them."""

    mixing: Node
    shape: tuple[int, ...]
    own: dict[Node, None] = field(default_factory=dict)
    products: list[Node] = field(default_factory=list)

    @staticmethod
    def of(mixing: Node) -> _Between | None:
        """None where the weights are not a score's at each place."""
        weights: Node = mixing.args[0]  # type: ignore[assignment]
        found = _Between(mixing, shape_of(weights))
        found._visit(weights)
        if len(found.products) != 1 or shape_of(found.product) != found.shape:
            return None
        carrying = found._carrying()
        if carrying is None or weights not in carrying:
            return None
        found._leave_out_what_others_need(carrying)
        return found

    @property
    def product(self) -> Node:
        return self.products[0]

    @property
    def weighs(self) -> bool:
        """Whether something is done between the products: else each is faster by itself, 1.29 times Inductor's speed
        on an H200 where both as one were at 1.17."""
        return not all(node is self.product or keeps_order(node) for node in self.own)

    def _visit(self, node: Node) -> None:
        """In the order in which they are computed; not by recursion, as work may be thousands of operators long."""
        waiting = [(node, False)]
        while waiting:
            node, is_done = waiting.pop()
            if is_done:
                self.own[node] = None
            elif node in self.own or is_constant(node):
                continue
            elif is_product(node):
                self.products.append(node)
                self.own[node] = None
            elif self._is_taken(node):
                waiting.append((node, True))
                waiting += [(read, False) for read in reversed(node.all_input_nodes)]

    def _is_taken(self, node: Node) -> bool:
        """Whether a node has an element for each place: less would be worked out again and again."""
        if not is_tensor(node) or shape_of(node)[-2:] != self.shape[-2:]:
            return False
        return is_view(node) or name_of(node) == "expand" or is_pointwise(node) or keeps_order(node)

    def _carrying(self) -> set[Node] | None:
        """The nodes that scores go through, each to its own place; None where they go elsewhere."""
        found = {self.product}
        for node in self.own:
            through = [read for read in node.all_input_nodes if read in found]
            if not through or node is self.product:
                continue
            straight = keeps_order(node) or (
                is_pointwise(node) and all(shape_of(n) == shape_of(node) for n in through)
            )
            if not straight or math.prod(shape_of(node)) != math.prod(self.shape):
                return None
            found.add(node)
        return found

    def _leave_out_what_others_need(self, carrying: set[Node]) -> None:
        """Such operands are in memory anyway."""
        while True:
            rest = (n for n in self.own if n not in carrying)
            needed = [n for n in rest if any(user not in self.own for user in n.users)]
            if not needed:
                return
            for node in needed:
                del self.own[node]

    def sums(self) -> Iterator[Node]:
        """Sums of the weights' rows."""
        node: Node = self.mixing.args[0]  # type: ignore[assignment]
        while True:
            yield from (u for u in node.users if self._sums_rows(u, node))
            if not keeps_order(node):
                return
            node = node.args[0]  # type: ignore[assignment]

    def _sums_rows(self, user: Node, node: Node) -> bool:
        if name_of(user) != "sum" or not is_tensor(user) or user.args[0] is not node:
            return False
        last = len(shape_of(node)) - 1
        plain = argument(user, "dtype") is None and dtype_of(user) == torch.float32
        return plain and reduced_dims(user) == (last,) and shape_of(node)[-2:] == self.shape[-2:]


def _endings(mixing: Node, sums: tuple[Node, ...]) -> Iterator[set[Node]]:
    """What may belong to the result, the most of it first: the product, pointwise work on it, and on sums of rows."""
    shape = shape_of(mixing)
    rows = _of_rows(sums, math.prod(shape[:-1]))
    node, chain, found = mixing, [mixing], [1]
    while len(node.users) == 1:
        (user,) = node.users
        if not is_tensor(user) or math.prod(shape_of(user)) != math.prod(shape):
            break
        if shape_of(user)[-2:] != shape[-2:] or dtype_of(user) != torch.float32:
            break
        pointwise = is_pointwise(user) and shape_of(user) == shape_of(node)
        if not pointwise and not keeps_order(user):
            break
        chain.append(user)
        node = user
        if pointwise:
            found.append(len(chain))
    for count in reversed(found):
        yield {*chain[:count], *rows}


def _of_rows(sums: tuple[Node, ...], count: int) -> set[Node]:
    """What is made of sums of rows alone, one number to a row."""
    found = set(sums)
    waiting = list(sums)
    while waiting:
        for user in waiting.pop().users:
            small = is_tensor(user) and math.prod(shape_of(user)) == count
            if small and user not in found and (keeps_order(user) or is_pointwise(user)):
                found.add(user)
                waiting.append(user)
    return found


def _of_matrices(own: set[Node], operands: set[Node]) -> set[Node]:
    """What makes the numbers that all places of a matrix read, of the graph's inputs: a head's decay, of a parameter.

    By itself it would be a launch for a few bytes. And the region then reads what was given, not what is made of it:
    drawn anew for a race, rates that a softplus has made would be negative in half of the heads, and their weights
    infinite. What others need as well is launched anyway.
    """
    numbers = (n for n in _leaves(own, operands) if all(size == 1 for size in shape_of(n)[-2:]))
    made = [nodes for n in numbers if (nodes := _made_of_inputs(n))]
    while True:
        within = own.union(*made)
        alone = [m for m in made if all(user in within for node in m for user in node.users)]
        if len(alone) == len(made):
            return set().union(*made)
        made = alone


def _made_of_inputs(number: Node) -> set[Node]:
    """All that makes a node of the graph's inputs; nothing where that is something else, or many operators, or views
    alone, which are no launch."""
    found: dict[Node, None] = {}
    waiting = [number]
    while waiting:
        node = waiting.pop()
        if node in found or is_constant(node):
            continue
        if len(found) == MOST_OF_A_NUMBER or not _is_simple(node):
            return set()
        if node.op not in GIVEN:
            found[node] = None
            waiting += node.all_input_nodes
    return set(found) if any(map(is_pointwise, found)) else set()


def _is_simple(node: Node) -> bool:
    if not is_tensor(node):
        return False
    if node.op in GIVEN or is_view(node) or name_of(node) == "expand":
        return dtype_of(node) in READ
    worked = is_pointwise(node) and dtype_of(node) in (torch.float32, torch.bool)
    return worked and name_of(node) in PRINTED


@dataclass(frozen=True)
class _Source:
    """What an operand of a product is a view or a copy of, and the nodes between."""

    matrices: Matrices
    passed: tuple[Node, ...]


def _source(node: Node, whole: bool) -> _Source | None:
    device, passed = node.meta["val"].device, []
    while moves(node) and (whole or len(node.users) == 1):
        passed.append(node)
        node = node.all_input_nodes[0]
    value = node.meta["val"]
    if not is_readable(value, device) or value.dtype != torch.float32:
        return None
    steps: Steps | None = steps_of(value.shape, value.stride())
    for step in reversed(passed):
        steps = None if steps is None else moved(steps, step)
    if steps is None:
        return None
    batch: tuple[Dim, ...] = ((), *steps)[-3:]
    return _Source(Matrices(node, *batch), tuple(passed))


def _formed(
    own: set[Node], last: Node, between: _Between, sums: tuple[Node, ...], parts: list[Matrices]
) -> BackToBack | None:
    """Where there is a kernel for it, and it pays."""
    query, key, value = parts[0], parts[1].transposed, parts[2]
    *batch, queries, keys = between.shape
    count = math.prod(batch)
    size, width = length(query.columns), length(value.columns)
    if not (query.even and key.even and value.even) or not _pays(count, queries, keys, size, width):
        return None
    if any(m.node in own or is_constant(m.node) for m in parts):
        return None
    device = last.meta["val"].device
    if not all(_is_leaf(n, device) for n in _leaves(own, {m.node for m in parts})):
        return None
    if len(_leaves(own, set())) > MOST_LEAVES:
        return None
    for batches, group in splits(count, (query, key, value)):
        heads = count // batches
        q = head_steps(query.batch, batches, heads, 1)
        k, v = (head_steps(m.batch, batches, heads, group) for m in (key, value))
        if q is None or k is None or v is None:
            continue
        return BackToBack(
            frozenset(own - {last}), last, between.product, between.mixing.args[0], between.mixing, sums,  # type: ignore[arg-type]
            batches, heads, heads // group, queries, keys, size, width,
            query.operand(q), key.operand(k), value.operand(v),
        )  # fmt: skip
    return None


def _leaves(own: set[Node], known: set[Node]) -> set[Node]:
    """What is read from outside, constants left out."""
    read: Iterable[Node] = (n for node in own for n in node.all_input_nodes)
    return {n for n in read if n not in own and n not in known and not is_constant(n)}


def _is_leaf(node: Node, device: torch.device) -> bool:
    return is_tensor(node) and is_readable(node.meta["val"], device)


def _pays(count: int, queries: int, keys: int, size: int, width: int) -> bool:
    if size % 8 or width % 8 or not 0 < size <= LARGEST_WIDTH or not 0 < width <= LARGEST_WIDTH:
        return False
    scores = count * queries * keys
    beside = count * (queries + keys) * (size + width)
    large = scores * size >= SMALLEST_WORK and queries >= FEWEST_ROWS
    return large and SAVING * beside <= scores < MOST_SCORES
