"""The least time a task can take: every byte it must read has to come from memory.

A floor, so every doubt lowers it. On cpu, inputs are evicted before each timed call and must be
read from memory, but what is written may stay in the cache: it counts only beyond the cache's size.
On cuda, what fits into the L2 need not be written through before the call ends either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sandbox.task.task import InputRef, Node, NodeRef, Ref, Task, references
from sandbox.timing.machine import Ceilings

if TYPE_CHECKING:
    import torch

IMPOSSIBLE = 0.95
"""A time below this share of the floor is refused."""
NEAR = 1.10
"""A baseline that takes no longer than so many times the floor leaves nothing worth a search."""

# Operands of which a kernel may have to read a part only, by operator.
_SELF = frozenset(("self",))
_PARTLY_READ = {
    **dict.fromkeys(
        ("gather", "index", "index_select", "slice", "select", "split", "split_with_sizes"), _SELF
    ),
    **dict.fromkeys(("narrow", "as_strided", "unfold", "diagonal", "unbind", "take"), _SELF),
    **dict.fromkeys(("full_like", "empty_like", "zeros_like", "ones_like", "any", "all"), _SELF),
    **dict.fromkeys(("_unsafe_index", "_unsafe_masked_index", "constant_pad_nd", "topk"), _SELF),
    "embedding": frozenset(("weight",)),
    **dict.fromkeys(("_embedding_bag_forward_only", "_embedding_bag"), frozenset(("weight",))),
    "where": frozenset(("self", "other")),
}


def floor_bytes(task: Task) -> tuple[int, int]:
    """Bytes that must be read, and bytes that must be written.

    An input counts if some output needs all of it; one that is cut, gathered from or masked on the
    way to every output does not count at all.
    """
    needed: set[Ref] = {_whole(output) for output in task.outputs}
    for position in range(len(task.nodes) - 1, -1, -1):
        if NodeRef(position) not in needed:
            continue
        node = task.nodes[position]
        partly = _partly_read(node)
        for name, arg in node.args.items():
            if name not in partly:
                needed.update(_whole(reference) for reference in references(arg))
    read = sum(
        min(spec.extent, spec.numel) * spec.itemsize
        for index, spec in enumerate(task.inputs)
        if InputRef(index) in needed
    )
    return read, sum(spec.numel * spec.itemsize for spec in task.output_specs)


def _partly_read(node: Node) -> frozenset[str]:
    """Names of the operands of which a kernel may have to read a part only, or nothing but the shape."""
    if node.name != "convolution_backward":
        return _PARTLY_READ.get(node.name, frozenset())
    mask = node.args["output_mask"]
    assert isinstance(mask, tuple)
    # the gradient of the input is made from the weight, that of the weight from the input
    unread = zip(("weight", "input"), mask, strict=False)
    return frozenset(name for name, wanted in unread if not wanted)


def _whole(reference: Ref) -> Ref:
    """The node, whichever of its results is meant."""
    return reference if isinstance(reference, InputRef) else NodeRef(reference.node)


def floor_seconds(task: Task, ceilings: Ceilings) -> float:
    """The floor in seconds."""
    read, written = floor_bytes(task)
    through = max(0, written - ceilings.cache_bytes)
    return read / ceilings.read_bytes_per_s + through / max(
        ceilings.bytes_per_s, ceilings.read_bytes_per_s
    )


def reachable_seconds(task: Task, ceilings: Ceilings) -> float:
    """What a kernel at the measured copy rate would take: everything written goes to memory too.

    Not a bound (a small output may stay in the cache), but what a search can hope for.
    """
    return ceilings.seconds_to_move(*floor_bytes(task))


def operations(module: torch.fx.GraphModule) -> int:
    """Floating-point operations of a task's products, convolutions and attention: a multiplication and an addition
    are two. Everything else counts nothing, being bound by memory.

    module: of `build_graph`. Counted by torch's own `FlopCounterMode` on the fake values of its inputs.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    with next((value.fake_mode for value in inputs), FakeTensorMode()):
        return operations_of(lambda: module(*inputs))


def operations_of(call: Callable[[], Any]) -> int:
    """The same for whatever a call runs in eager mode."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    aten = torch.ops.aten
    attentions = (
        aten._scaled_dot_product_flash_attention_for_cpu,  # torch's own count lacks it
        aten._scaled_dot_product_flash_attention,  # and refuses heads that share keys and values
        aten._scaled_dot_product_efficient_attention,
        aten._scaled_dot_product_cudnn_attention,
    )
    mapping = dict.fromkeys(attentions, _attention_operations)
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        call()
    return int(counter.get_total_flops())


def _attention_operations(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Of attention, from shapes [batch, heads, tokens, depth]; of keys and values there may be fewer heads."""
    batch, heads, tokens, depth = query
    return 2 * batch * heads * tokens * key[2] * (depth + value[3])


@dataclass(frozen=True)
class Achieved:
    """The rates that a time amounts to, for the least traffic and the products of a task.

    bytes: read and written at least. of_memory, of_arithmetic: shares of the machine's measured rates; the
    higher one says what binds. Above 1 where outputs stay in the cache, or where the products are not in float32.
    """

    seconds: float
    bytes: int
    bytes_per_s: float
    of_memory: float
    operations: int
    operations_per_s: float
    of_arithmetic: float

    def to_dict(self) -> dict[str, float]:
        """As JSON."""
        return asdict(self)


def achieved(task: Task, work: int, seconds: float, ceilings: Ceilings) -> Achieved:
    """What one call in so many seconds amounts to. work: the task's `operations`."""
    moved = sum(floor_bytes(task))
    return Achieved(
        seconds=seconds,
        bytes=moved,
        bytes_per_s=moved / seconds,
        of_memory=reachable_seconds(task, ceilings) / seconds,
        operations=work,
        operations_per_s=work / seconds,
        of_arithmetic=work / seconds / ceilings.flops_per_s,
    )
