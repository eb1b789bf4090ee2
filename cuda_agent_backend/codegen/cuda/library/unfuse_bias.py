"""What a product or a convolution adds to its sums, as an operator of its own.

A library's convolution adds a bias in a pass of its own, and a product copies what it adds to; a kernel behind it reads
the sums anyway, and adds it for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sandbox.task.specs import TensorSpec
from sandbox.task.task import Arg, InputRef, Node, NodeRef, Ref, Task

_HALF = ("float16", "bfloat16")
OPERANDS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}
"""Products, and what their operands are called."""
SUMMAND = "self"
"""Of those that have one."""
PLAIN = {"addmm": "mm", "baddbmm": "bmm"}
"""Products with a summand, and those without."""


def moved(arg: Arg, place: Callable[[Ref], Arg]) -> Arg:
    """The argument with another in the place of each reference."""
    if isinstance(arg, NodeRef | InputRef):
        return place(arg)
    return tuple(moved(one, place) for one in arg) if isinstance(arg, tuple) else arg


def unfuse_biases(task: Task, specs: Mapping[Ref, TensorSpec]) -> Task:
    """``task`` with additions behind its products. specs: of its values, see `sandbox.graph.build.value_specs`.

    In half precision a row stays with its product, which adds it before it rounds.
    """
    nodes: list[Node] = []
    found: dict[int, int] = {}

    def place(ref: Ref) -> Arg:
        return replace(ref, node=found[ref.node]) if isinstance(ref, NodeRef) else ref

    def append(op: str, args: Mapping[str, Arg]) -> NodeRef:
        nodes.append(Node(op, args))
        return NodeRef(len(nodes) - 1)

    for number, node in enumerate(task.nodes):
        args = {name: moved(value, place) for name, value in node.args.items()}
        if node.name == "convolution" and args.get("bias") is not None:
            stride = args["stride"]
            assert isinstance(stride, tuple)
            sums = append(node.op, {**args, "bias": None})
            row = append(
                "aten.view.default", {"self": args["bias"], "size": (-1, *[1] * len(stride))}
            )
            last = append("aten.add.Tensor", {"self": sums, "other": row})
        elif node.name in PLAIN and _adds_apart(node, specs):
            plain = PLAIN[node.name]
            names = zip(OPERANDS[plain], OPERANDS[node.name], strict=True)
            sums = append(f"aten.{plain}.default", {new: args[old] for new, old in names})
            last = append("aten.add.Tensor", {"self": sums, "other": args[SUMMAND]})
        else:
            last = append(node.op, args)
        found[number] = last.node
    outputs = tuple(place(ref) for ref in task.outputs)
    return replace(task, nodes=tuple(nodes), outputs=outputs)  # type: ignore[arg-type]


def _adds_apart(node: Node, specs: Mapping[Ref, TensorSpec]) -> bool:
    summand = node.args[SUMMAND]
    assert isinstance(summand, NodeRef | InputRef)
    spec = specs[summand]
    row = len(spec.shape) == 1 and spec.dtype in _HALF
    return is_unscaled(node) and not row


def is_unscaled(node: Node) -> bool:
    """Whether a product with a summand scales neither."""
    return node.args.get("beta", 1) == 1 and node.args.get("alpha", 1) == 1
