"""What a task should compute: in float64 (the oracle), and as torch's eager mode computes it.

The oracle runs the same graph with every floating-point value in float64: inputs are widened and
conversions to a narrower floating-point type become conversions to float64. An operator that has no
float64 kernel runs in its own precision; `Oracle.narrow` lists those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sandbox.accuracy.finiteness import is_finite
from sandbox.accuracy.positions import ExtremumCheck, OrderCheck, PositionCheck
from sandbox.accuracy.written_out import written_out
from sandbox.task.arguments import Arg
from sandbox.task.task import InputRef, Node, NodeRef, Ref, Task

if TYPE_CHECKING:
    import torch

_VALUE_KEEPING = ("view", "unsqueeze", "squeeze", "reshape", "clone", "alias", "_unsafe_view")
_OF_BITS = frozenset(("aten.view.dtype", "aten.nextafter.default"))
"""Operators whose meaning lies in the bits of a dtype."""
_ATTENTION = "aten._scaled_dot_product_efficient_attention.default"
_SQUARE_ATTENTIONS = (
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
)
"""These have no kernel for float64. Where there are other keys than queries, the latter's causal mask begins where the
library's version says."""
_INDEX_OPS = {"argmax": True, "argmin": False}
_PAIR_OPS = {"max": True, "min": False}
_ORDER_OPS = ("sort", "topk")


@dataclass(frozen=True)
class PositionRule:
    """An output that holds positions: any position of an equal value is right.

    `kind`: of the maximum, of the minimum, or of sorted elements. `dim` is None for the position in the flattened
    operand. `exact`: the operand is an input, so its values are the same in every precision.
    """

    operand: Ref
    dim: int | None
    kind: Literal["maximum", "minimum", "order"]
    exact: bool

    def check(self, operand: torch.Tensor) -> PositionCheck:
        """The check against the operand's values."""
        if self.kind == "order":
            return OrderCheck(operand, self.dim or 0)
        return ExtremumCheck(operand, self.dim, self.kind == "maximum", self.exact)


@dataclass(frozen=True)
class Oracle:
    """Outputs in float64, operands of outputs that hold positions (by output number), operators run narrow."""

    outputs: list[torch.Tensor]
    operands: dict[int, torch.Tensor] = field(default_factory=dict)
    narrow: tuple[str, ...] = ()


def position_rules(task: Task) -> dict[int, PositionRule]:
    """The outputs of a task that are positions of an extremum or of sorted elements, by output number."""
    found = {}
    for number, output in enumerate(task.outputs):
        rule = _position_rule(task, output)
        if rule is not None:
            found[number] = rule
    return found


def _position_rule(task: Task, reference: Ref) -> PositionRule | None:
    picked = None
    while isinstance(reference, NodeRef):
        node = task.nodes[reference.node]
        name, overload = node.op.split(".")[1:]
        if name in _INDEX_OPS:
            return _extremum(task, node.args, _INDEX_OPS[name])
        if name in _PAIR_OPS and overload == "dim" and reference.output == 1:
            return _extremum(task, node.args, _PAIR_OPS[name])
        if name in _ORDER_OPS and reference.output == 1 and picked is None:
            return _order(task, node.args)
        picked = node.args.get("self")
        if not _keeps_values(node) or not isinstance(picked, NodeRef | InputRef):
            return None
        reference = picked
    return None


def _extremum(task: Task, args: Mapping[str, Arg], largest: bool) -> PositionRule | None:
    operand, dim = args["self"], args.get("dim")
    if not isinstance(operand, NodeRef | InputRef) or not isinstance(dim, int | None):
        return None
    return PositionRule(operand, dim, "maximum" if largest else "minimum", _is_input(task, operand))


def _order(task: Task, args: Mapping[str, Arg]) -> PositionRule | None:
    """None where positions are settled (a stable sort) or nothing is (no order asked for, values that vary)."""
    operand, dim = args["self"], args.get("dim", -1)
    if not isinstance(operand, NodeRef | InputRef) or not isinstance(dim, int):
        return None
    if args.get("stable") or args.get("sorted", True) is not True or not _is_input(task, operand):
        return None
    return PositionRule(operand, dim, "order", True)


def _is_input(task: Task, root: Arg) -> bool:
    """Whether these are an input's values, perhaps in another shape."""
    while isinstance(root, NodeRef):
        node = task.nodes[root.node]
        if not _keeps_values(node):
            break
        root = node.args.get("self")
    return isinstance(root, InputRef)


def _keeps_values(node: Node) -> bool:
    return node.name in _VALUE_KEEPING and node.op not in _OF_BITS


def exact_operands(
    task: Task, module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor] | None:
    """What outputs that hold positions point into, by output number, in its own precision: inputs, or views of them.
    None where some of it is computed. `module` is `build_graph(task)`."""
    rules = position_rules(task)
    if not all(rule.exact for rule in rules.values()):
        return None
    given = module.graph.find_nodes(op="placeholder")
    values = _Values(dict(zip(given, inputs, strict=True)))
    node_at = {place: node for node, place in _places(module).items()}
    return {number: values.of(node_at[rule.operand]) for number, rule in rules.items()}


class _Values:
    """What nodes come to, each computed once. A class: a function that called itself would hold the inputs' memory in a
    reference cycle, until Python next collects garbage."""

    def __init__(self, known: dict[torch.fx.Node, Any]) -> None:
        self._known = known

    def of(self, node: torch.fx.Node) -> Any:
        """A node's value."""
        from torch.fx.node import map_arg

        if node not in self._known:
            target: Any = node.target
            args, named = map_arg(node.args, self.of), map_arg(node.kwargs, self.of)
            self._known[node] = target(*args, **named)
        return self._known[node]


def run_eager(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The task's outputs in eager mode. Raises whatever torch raises."""
    import torch

    with torch.no_grad():
        return list(module(*inputs))


def run_oracle(task: Task, module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Oracle:
    """The task's outputs in float64. `module` is `build_graph(task)`."""
    import torch

    rules = position_rules(task)
    interpreter = _interpreter(module, {rule.operand for rule in rules.values()})
    with torch.no_grad():
        outputs = list(interpreter.run(*(widen(tensor) for tensor in inputs)))
    operands = {number: interpreter.kept[rule.operand] for number, rule in rules.items()}
    return Oracle(outputs, operands, tuple(sorted(interpreter.narrow)))


def run_written_out(
    module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Outputs in float64 of the same graph `written_out`; empty where that is the same graph, or inputs are finite."""
    import torch

    other = written_out(module)
    if other is None or all(is_finite(tensor) for tensor in inputs):
        return []
    with torch.no_grad():
        return list(_interpreter(other, set()).run(*(widen(tensor) for tensor in inputs)))


def widen(value: Any) -> Any:
    """Of floating point, a tensor or a dtype, in float64."""
    import torch

    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return value.to(torch.float64)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor]:
    """The first result of `_ATTENTION` head by head, of which several may share keys and values; 0 where a query sees
    no key, as there.

    What a query does not see is nothing to it, infinite or not. Eager's kernels multiply by weights of zero what lies
    beyond the diagonal in the same tile, so that such values make NaN of some rows, by the size of their tiles.
    """
    import torch

    together = query.shape[1] // key.shape[1]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    out = query.new_empty(*query.shape[:3], value.shape[3])
    hidden = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
    for place in ((b, h) for b in range(query.shape[0]) for h in range(query.shape[1])):
        shared = (place[0], place[1] // together)
        score = query[place] @ key[shared].t() * factor
        if bias is not None:
            score += bias.expand(*query.shape[:3], -1)[place]
        if causal:
            score.masked_fill_(hidden, -torch.inf)
        none = (score == -torch.inf).all(-1, keepdim=True)
        weights = score.softmax(-1).masked_fill_(none, 0.0)
        out[place] = _weighted(weights, score != -torch.inf, value[shared])
    return (out,)


def _attention_in(node: torch.fx.Node, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """What to give `_attention` in place of a call, None where it is no attention or more of it is asked for.

    Raises ValueError where the result is random.
    """
    target: Any = node.target
    square = str(target) in _SQUARE_ATTENTIONS
    if not square and str(target) != _ATTENTION:
        return None
    given = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs
    if given.get("dropout_p"):
        raise ValueError("a result that is random")
    query, key, causal = given["query"], given["key"], given.get("is_causal", False)
    beyond = any(user.args[1] != 0 for user in node.users)
    if beyond or (square and causal and query.shape[2] != key.shape[2]):
        return None
    own = {"query": query, "key": key, "value": given["value"], "bias": given.get("attn_bias")}
    return own | {"causal": causal, "scale": given.get("scale")}


def _weighted(weights: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """weights [queries, keys] @ value [keys, depth], of the keys that a query sees (booleans, as weights)."""
    import torch

    finite = value.isfinite()
    if bool(finite.all()):
        return weights @ value

    def meet(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one.to(value.dtype) @ other.to(value.dtype) > 0

    up, down = (meet(weights > 0, value == infinity) for infinity in (torch.inf, -torch.inf))
    lost = meet(seen, value.isnan()) | meet(seen & (weights == 0), ~finite) | up & down
    found = weights @ value.masked_fill(~finite, 0.0)
    found[up] += torch.inf
    found[down] -= torch.inf
    return found.masked_fill_(lost, torch.nan)


def _interpreter(module: torch.fx.GraphModule, keep: set[Ref]) -> Any:
    """An interpreter that widens; `kept` and `narrow` hold what it found on the way."""
    import torch

    places = _places(module)

    class Widening(torch.fx.Interpreter):
        def __init__(self) -> None:
            super().__init__(module)
            self.kept: dict[Ref, torch.Tensor] = {}
            self.narrow: set[str] = set()

        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if places.get(n) in keep:
                self.kept[places[n]] = result
            return result

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            own = self.current.args, self.current.kwargs
            return call_wide(self.current, own, self.env.__getitem__, self.narrow)

        def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> Any:
            self.current = n
            return super().fetch_args_kwargs_from_env(n)

    return Widening()


def call_wide(
    node: torch.fx.Node,
    arguments: tuple[Any, Any],
    value_of: Callable[[torch.fx.Node], Any],
    narrow: set[str],
) -> Any:
    """A node's result in float64, or, where its operator has no kernel for that, in its own precision, widened.

    arguments: the node's args and kwargs, of nodes whose values `value_of` gives, widened. narrow: is told the names of
    operators of the second kind. Raises torch.OutOfMemoryError, which says nothing of kernels, and whatever the
    operator raises in its own precision.
    """
    import torch
    from torch.fx.node import map_aggregate, map_arg
    from torch.utils._pytree import tree_map

    target: Any = node.target
    args, kwargs = map_arg(arguments, value_of)
    attention: Any = _attention_in(node, args, kwargs)
    if attention is not None:
        return _attention(**map_aggregate(attention, widen))
    if str(target) not in _OF_BITS:
        try:
            return target(*map_aggregate(args, widen), **map_aggregate(kwargs, widen))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError):
            pass  # it has no kernel for float64
    narrow.add(str(target))
    args, kwargs = map_arg(arguments, lambda n: _narrow(value_of(n), n.meta["val"]))
    return tree_map(widen, target(*args, **kwargs))


def _narrow(value: Any, fake: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(fake.dtype)
    if isinstance(value, list | tuple):
        return type(value)(_narrow(v, f) for v, f in zip(value, fake, strict=True))
    return value


def _places(module: torch.fx.GraphModule) -> dict[torch.fx.Node, Ref]:
    """The task reference of each FX node of a module built from a task."""
    import operator

    found: dict[torch.fx.Node, Ref] = {}
    inputs = nodes = 0
    for node in module.graph.nodes:
        if node.op == "placeholder":
            found[node] = InputRef(inputs)
            inputs += 1
        elif node.op == "call_function" and node.target is operator.getitem:
            whole = found[node.args[0]]
            assert isinstance(whole, NodeRef)
            found[node] = NodeRef(whole.node, node.args[1])
        elif node.op == "call_function":
            found[node] = NodeRef(nodes)
            nodes += 1
    return found
