"""Which values an input may hold, from how the task uses it."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox.accuracy.domains import VIEWS, not_negative
from sandbox.accuracy.inputs import NOT_NEGATIVE, SAFE_BOUNDS, SCALED, STATE, Bounds
from sandbox.task.arguments import Arg
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Node, NodeRef, Ref, Task, references

WIDE: dict[str, Bounds] = {
    "int8": (-128, 128),
    "uint8": (0, 256),
    "int16": (-1000, 1000),
    "int32": (-1000, 1000),
    "int64": (-1000, 1000),
}
"""For integers that are only computed with."""

# Operand that is an index, operand that it points into, name of the dimension argument (else 0).
_INDEXED: dict[str, tuple[str, str, str | None]] = {
    "embedding": ("indices", "weight", None),
    "_embedding_bag_forward_only": ("indices", "weight", None),
    "_embedding_bag": ("indices", "weight", None),
    "gather": ("index", "self", "dim"),
    "index_select": ("index", "self", "dim"),
    "index_add": ("index", "self", "dim"),
    "index_copy": ("index", "self", "dim"),
    "index_fill": ("index", "self", "dim"),
    "scatter": ("index", "self", "dim"),
    "scatter_add": ("index", "self", "dim"),
    "scatter_reduce": ("index", "self", "dim"),
}
_INDEX_LISTS = ("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_unsafe_masked_index",
                "_unsafe_masked_index_put_accumulate")  # fmt: skip
_DIVISORS = ("div", "floor_divide", "remainder", "fmod")
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
_PASS_ON = VIEWS | {
    "slice", "select", "where", "cat", "constant_pad_nd", "repeat", "flip", "split", "split_with_sizes", "unbind",
}  # fmt: skip
"""Operators whose result holds values of their operands and nothing else."""


def input_bounds(task: Task) -> tuple[Bounds | None, ...]:
    """Per input the bounds that keep every use valid; None for booleans, and for floating-point inputs but those of
    roots and logarithms, which are `NOT_NEGATIVE` (see `domains`), and those of recurrent layers: weights are `SCALED`,
    states before the first step are a `STATE`.

    An input that reaches an index operand only through operators that keep values gets the size it
    points into; one that reaches it in another way gets {0, 1}; one that is never an index gets a
    wide range.
    """
    found, positive = _uses(task), not_negative(task)
    special = dict.fromkeys(_recurrent_states(task), STATE)
    special |= {index: SCALED for own in recurrent_weights(task) for index in own}
    special |= dict.fromkeys(positive, NOT_NEGATIVE)

    def bounds(index: int, spec: TensorSpec) -> Bounds | None:
        if spec.dtype.startswith(("float", "bfloat", "bool")):
            return special.get(index)
        return _bound(index, spec, found)

    return tuple(bounds(index, spec) for index, spec in enumerate(task.inputs))


def recurrent_weights(task: Task) -> list[list[int]]:
    """For each recurrent layer of a task, its weights that are inputs, in their order."""
    weights = (references(node.args["weights"]) for node in _recurrent(task))
    return [[found.index for found in own if isinstance(found, InputRef)] for own in weights]


def _recurrent_states(task: Task) -> list[int]:
    given = (node.args.get(name) for node in _recurrent(task) for name in ("h", "c"))
    return [state.index for state in given if isinstance(state, InputRef)]


def _recurrent(task: Task) -> Iterator[Node]:
    for node in task.nodes:
        if node.op.startswith("cuda_agent.") and "weights" in node.args:
            yield node


def _bound(index: int, spec: TensorSpec, uses: dict[int, list[Bounds | None]]) -> Bounds:
    mine = uses.get(index, [])
    if not mine:
        return WIDE.get(spec.dtype, SAFE_BOUNDS)
    known = [use for use in mine if use is not None]
    if len(known) < len(mine):
        known.append(SAFE_BOUNDS)
    low, high = max(low for low, _ in known), min(high for _, high in known)
    limit = WIDE[spec.dtype][1] if spec.dtype in ("int8", "uint8") else high
    return (low, min(high, limit)) if low < high else (low, low + 1)


def _uses(task: Task) -> dict[int, list[Bounds | None]]:
    """Per input the bounds of each delicate use; None where a value was changed on the way
    there.
    """
    sizes = _Sizes(task)
    found: dict[int, list[Bounds | None]] = {}
    for node in task.nodes:
        for reference, bounds in _delicate(node, sizes):
            for index, direct in _sources(task, reference):
                found.setdefault(index, []).append(bounds if direct else None)
    return found


def _delicate(node: Node, sizes: _Sizes) -> Iterator[tuple[Ref, Bounds]]:
    """Operands that must stay within bounds, with these."""
    name = node.name
    args = node.args
    if name in _INDEXED:
        operand, into, dimension = _INDEXED[name]
        dim = args.get(dimension, 0) if dimension else 0
        size = sizes.of(args.get(into), dim)
        yield from ((reference, (0, size)) for reference in references(args.get(operand)))
        # where bags begin: they must ascend from 0, and none need hold anything
        yield from ((reference, (0, 1)) for reference in references(args.get("offsets")))
    elif name in _INDEX_LISTS:
        indices = args.get("indices")
        for dim, item in enumerate(indices if isinstance(indices, tuple) else ()):
            size = sizes.of(args.get("self"), dim)
            yield from ((reference, (0, size)) for reference in references(item))
    elif name in _DIVISORS:
        yield from ((reference, (1, 4)) for reference in references(args.get("other")))
    elif name in _SHIFTS:
        yield from ((reference, (0, 4)) for reference in references(args.get("other")))
    elif name not in _KNOWN_HARMLESS and not _elementwise(node.op):
        for arg in args.values():
            yield from ((reference, SAFE_BOUNDS) for reference in references(arg))


_KNOWN_HARMLESS = _PASS_ON | frozenset(
    [
        "sum",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "max",
        "min",
        "mean",
        "prod",
        "any",
        "all",
        "cumsum",
        "cumprod",
        "sort",
        "topk",
        "full",
        "full_like",
        "empty",
        "zeros",
        "ones",
        "scalar_tensor",
        "iota",
        "arange",
        "mm",
        "bmm",
        "addmm",
        "eq",
    ]
)


def _elementwise(op: str) -> bool:
    import torch

    from sandbox.graph.operators import resolve_operator

    return torch.Tag.pointwise in resolve_operator(op).tags


def _sources(task: Task, reference: Ref) -> Iterator[tuple[int, bool]]:
    """Inputs whose values reach the reference, and whether they do so unchanged."""
    seen: set[tuple[Ref, bool]] = set()
    todo: list[tuple[Ref, bool]] = [(reference, True)]
    while todo:
        item = todo.pop()
        if item in seen:
            continue
        seen.add(item)
        place, direct = item
        if isinstance(place, InputRef):
            yield place.index, direct
            continue
        node = task.nodes[place.node]
        name = node.name
        direct = direct and name in _PASS_ON
        for argument, value in node.args.items():
            if name == "where" and argument == "condition":
                continue
            todo.extend((found, direct) for found in references(value))


class _Sizes:
    """Sizes of dimensions of the values in a task, from its graph's fake values; built when
    asked.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._values: dict[Ref, tuple[int, ...]] | None = None

    def of(self, arg: Arg, dim: Arg) -> int:
        """Size along `dim` of the operand, at least 1."""
        if not isinstance(arg, NodeRef | InputRef) or not isinstance(dim, int):
            return 1
        shape = self._shapes()[arg]
        return max(1, shape[dim]) if shape else 1

    def _shapes(self) -> dict[Ref, tuple[int, ...]]:
        if self._values is None:
            from sandbox.graph.build import value_shapes

            self._values = value_shapes(self._task)
        return self._values
