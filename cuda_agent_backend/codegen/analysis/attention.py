"""Tasks that are a scaled dot-product attention, as one operator of torch or written out.

Such a task is matched as a whole: as loop nests its scores would go through memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported, attempt
from cuda_agent_backend.graph.strides import reshaped, single, steps_of
from cuda_agent_backend.operators.attention import ATTENTION, SQUARE_WHERE_CAUSAL
from cuda_agent_backend.operators.sdpa import sdpa_of
from sandbox.graph.build import build_graph
from sandbox.task.task import InputRef, Node, NodeRef, Task, TensorSpec

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Matrices:
    """One operand: the task's input, and elements between neighbours of each dimension (batch, head, row, column)."""

    input: int
    steps: Strides


@dataclass(frozen=True)
class Attention:
    """``softmax(scale Q K^T + mask) V`` for each batch and head.

    Heads of K and V serve ``heads // shared_heads`` neighbouring heads of Q each. Where ``causal``, query i sees the
    keys up to i. Where ``all_keys``, what a query does not see is multiplied all the same, minus infinity added to its
    score. A query that sees no key has zeros for a result, but NaN where not ``guarded``. ``early``: the part of the
    scale that counts before sums overflow. ``fill``: what takes the place of a score that is hidden, by a mask of
    booleans where that is ``hides`` (None of a mask that is added), or by the causal one; None where masks are added.
    ``cap``: scores are ``cap tanh(scale Q K^T)``, None where there is no tangent.
    """

    dtype: torch.dtype
    batches: int
    heads: int
    shared_heads: int
    queries: int
    keys: int
    size: int
    scale: float
    causal: bool
    query: Matrices
    key: Matrices
    value: Matrices
    mask: Matrices | None
    output_steps: Strides
    all_keys: bool = False
    guarded: bool = True
    early: float = 1.0
    fill: float | None = None
    hides: bool | None = None
    cap: float | None = None


def offset(steps: Strides, head: str) -> str:
    """Where, in C, a head of a batch begins; ``head`` is the name of its number."""
    return f"batch * {steps[0]} + {head} * {steps[1]}"


def word(value: bool) -> str:
    """In C."""
    return "true" if value else "false"


def is_attention(task: Task) -> bool:
    return any(_operator(node) in ATTENTION[task.target] for node in task.nodes)


def _operator(node: Node) -> str:
    return node.name if node.op == f"aten.{node.name}.default" else ""


def attention_of(task: Task) -> Attention | NotCovered:
    """The attention that ``task`` is (see `is_attention`); the reason where it is more than that, or of a form that no
    kernel knows."""
    return attempt(lambda: _attention_of(task))


def _attention_of(task: Task) -> Attention:
    if len(task.nodes) != 1 or task.outputs != (NodeRef(0, 0),):
        raise Unsupported("attention together with other operators, or its logarithms of sums")
    name, args = _operator(task.nodes[0]), task.nodes[0].args
    query, key, value = (_matrices(task, args[part]) for part in ("query", "key", "value"))
    batches, heads, queries, size = task.inputs[query.input].shape
    shared_heads, keys = task.inputs[key.input].shape[1:3]
    if task.inputs[value.input].shape[3] != size:
        raise Unsupported("values whose heads are not of the size of the keys'")
    given, causal = args.get("scale"), bool(args.get("is_causal", False))
    scale = float(given) if isinstance(given, float) else 1 / math.sqrt(size)
    if args.get("dropout_p", 0.0) != 0.0:
        raise Unsupported("attention with dropout")
    dtype = getattr(torch, task.inputs[query.input].dtype)
    if size % 8 or size > ATTENTION[task.target][name].get(dtype, 0):
        raise Unsupported(f"heads of {size} elements in {task.inputs[query.input].dtype}")
    if causal and queries != keys and name in SQUARE_WHERE_CAUSAL:
        raise Unsupported(
            "a causal mask for more keys than queries, or fewer, which begins where the library says"
        )
    if heads % shared_heads or not (scale > 0 and math.isfinite(scale)):
        raise Unsupported(f"{heads} heads for {shared_heads}, or scale {scale}")
    mask = None
    given_mask = args.get("attn_mask", args.get("attn_bias"))
    if given_mask is not None:
        if causal:
            raise Unsupported("a mask beside a causal one")
        mask = _mask(task, given_mask, (batches, heads, queries, keys))
    steps = task.output_specs[0].stride
    if steps[3] != 1:
        raise Unsupported("an output whose heads are not contiguous")
    return Attention(
        dtype, batches, heads, shared_heads, queries, keys, size, scale, causal,
        query, key, value, mask, steps,
    )  # fmt: skip


def written_out_attention_of(task: Task) -> Attention | None:
    """The attention that ``task`` is where it is written out as products and a softmax; else None."""
    products = [number for number, node in enumerate(task.nodes) if _operator(node) == "bmm"]
    if task.target != "cuda" or len(products) != 2 or task.outputs != (NodeRef(products[1]),):
        return None
    graph = build_graph(replace(task, target="cpu")).graph
    last = graph.output_node().all_input_nodes[0]
    found = sdpa_of(last, whole=True)
    if found is None:
        return None
    numbers = {node: i for i, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    operands = [found.query, found.key, found.value] + ([found.mask] if found.mask else [])
    spec = task.output_specs[0]
    laid = reshaped(
        steps_of(spec.shape, spec.stride),
        (found.batches, found.heads, found.queries, found.size),
    )
    steps = tuple(s for dim in laid or () if (s := single(dim)) is not None)
    if any(own.node not in numbers for own in operands) or len(steps) != 4 or steps[3] != 1:
        return None
    query, key, value, *mask = (Matrices(numbers[own.node], own.steps) for own in operands)
    return Attention(
        found.dtype, found.batches, found.heads, found.shared_heads, found.queries, found.keys, found.size,
        found.scale, found.causal, query, key, value, mask[0] if mask else None, steps,
        all_keys=True, guarded=found.guarded, early=found.early, fill=found.fill, hides=found.hides,
        cap=found.cap,
    )  # fmt: skip


def _matrices(task: Task, argument: object) -> Matrices:
    number, spec = _input(task, argument)
    if len(spec.shape) != 4 or spec.stride[3] != 1:
        raise Unsupported(f"input {number} is not a batch of heads with contiguous rows")
    return Matrices(number, _steps(spec.shape, spec.stride))


def _mask(task: Task, argument: object, shape: tuple[int, ...]) -> Matrices:
    number, spec = _input(task, argument)
    if len(spec.shape) not in (2, 4):
        raise Unsupported(f"mask of {len(spec.shape)} dimensions")
    own = (*(1,) * (4 - len(spec.shape)), *spec.shape)
    if any(a not in (1, b) for a, b in zip(own, shape, strict=True)):
        raise Unsupported(f"mask of shape {spec.shape}")
    return Matrices(number, _steps(own, (*(0,) * (4 - len(spec.shape)), *spec.stride)))


def _steps(shape: tuple[int, ...], stride: tuple[int, ...]) -> Strides:
    """Strides, 0 where there is nothing to step to."""
    return tuple(s if n != 1 else 0 for n, s in zip(shape, stride, strict=True))


def _input(task: Task, argument: object) -> tuple[int, TensorSpec]:
    if not isinstance(argument, InputRef):
        raise Unsupported("attention of something that is not an input")
    spec = task.inputs[argument.index]
    if spec.dtype != task.output_specs[0].dtype:
        raise Unsupported(f"attention of {spec.dtype} in {task.output_specs[0].dtype}")
    return argument.index, spec
