"""Attention pooling: sums over tokens that a softmax of their own scores weighs.

A first kernel makes a score of each token, a sum of products with a vector; a second takes the softmax over the tokens
of a batch; a third sums the tokens by these weights. Each token is read twice, which is all the time this takes.
`attention_pooling_of` finds the three, so that one kernel may do it while it has the token at hand (see `writer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch

from cuda_agent_backend.codegen.cuda.attention.pooling.expressions import (
    Expression,
    Operation,
    Part,
    Reduction,
    expression_of,
    softmax_parts,
    weighed,
)
from cuda_agent_backend.codegen.cuda.gemm.epilogue.loops import cut_at, ends_of, names_of, stored_by
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient, row_major
from cuda_agent_backend.codegen.ir.kernel import Dim, Kernel, Local, RowStage
from cuda_agent_backend.codegen.ir.region import LoweredRegion, Store
from cuda_agent_backend.codegen.ir.ssa import Body, Instruction, Value

HIDDEN = ("weighed_score", "weighed_token")
"""Locals at hand: the sum of products that a score is made of, and the sum of weighed tokens."""


@dataclass(frozen=True)
class PoolingMatch:
    """Kernels ``number`` to ``number`` + 2 of what was asked for are one of ``kernels``.

    batch, tokens, features: the loops. token, query: what is read, with its index. score: stages that make of the
    local ``HIDDEN[0]``, a sum of products, a score, the last one; tail: stages that make results of the local
    ``HIDDEN[1]``, of a batch's feature.
    """

    kernels: tuple[Kernel, ...]
    number: int
    batch: tuple[Dim, ...]
    tokens: Dim
    features: Dim
    token: tuple[str, sympy.Expr]
    query: tuple[str, sympy.Expr]
    score: Kernel
    tail: Kernel


def attention_pooling_of(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
) -> PoolingMatch:
    """Raises Unsupported where kernel ``number`` and the next two are something else, with the reason."""
    scoring, softening, summing = _three(region, kernels, number)
    buffer, stored = stored_by(scoring)
    reads = [
        (i.index, (*softening.outer, *s.inner))
        for s in softening.stages
        for i in s.body.accesses()
        if i.buffer == buffer and i.index is not None
    ]
    ends = ends_of([stored, *reads])
    scoring = cut_at(scoring, [stored], ends)
    first, *maps = scoring.stages
    if (
        len(first.inner) != 1
        or first.combine != "sum"
        or any(s.kind != "map" or s.inner for s in maps)
    ):
        raise Unsupported("scores that are no sums of products")
    factors = _factors(first.body)
    batch, tokens, weights = _softmax(scoring, softening, buffer)
    features, token, query = _summed(summing, batch, tokens, weights, first, factors)
    if any(region.buffers[b].dtype != torch.float32 for b, _ in (token, query)):
        raise Unsupported("tokens of another type than float32")
    score = _score(scoring, softening, buffer)
    tail = _tail(summing, batch, features)
    gone = {s.buffer for k in (scoring, softening) for stage in k.stages for s in stage.stores}
    if gone & {i.buffer for s in tail.stages for i in s.body.accesses()}:
        raise Unsupported("scores or weights that what follows the sum needs")
    joined = Kernel((*batch, features), tail.stages, tail.locals)
    found = (*kernels[:number], joined, *kernels[number + 3 :])
    return PoolingMatch(found, number, batch, tokens, features, token, query, score, tail)


def _three(
    region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
) -> tuple[Kernel, Kernel, Kernel]:
    """Kernels of which each hands on what nothing else reads."""
    if number + 3 > len(kernels):
        raise Unsupported("fewer than three kernels")
    three = kernels[number : number + 3]
    made = {s.buffer for k in three[:2] for stage in k.stages for s in stage.stores}
    rest = [k for n, k in enumerate(kernels) if not number <= n < number + 3]
    read = {i.buffer for k in rest for s in k.stages for i in s.body.accesses()}
    if made & {*region.outputs, *read}:
        raise Unsupported("scores or weights that something else needs")
    if three[0].stages[0].kind != "reduce" or three[2].stages[0].kind != "reduce":
        raise Unsupported("no sums of products")
    return three[0], three[1], three[2]


def _factors(body: Body) -> tuple[Instruction, Instruction]:
    made = {i.result: i for i in body.instructions}
    product = made[body.results[0]]
    loads = [made[o] for o in product.operands if isinstance(o, Value)]
    if product.op != "mul" or len(loads) != 2 or any(i.op != "load" for i in loads):
        raise Unsupported("scores that are no sums of products")
    return loads[0], loads[1]


def _softmax(
    scoring: Kernel, softening: Kernel, buffer: str
) -> tuple[tuple[Dim, ...], Dim, dict[str, Part]]:
    """The loops over batches and tokens, and of what is stored what it is: exponentials, sums, weights."""
    known: dict[str, Expression] = {buffer: Part.SCORE}
    tops: list[Expression] = []
    loops: _Loops | None = None
    for stage in softening.stages:
        own = _loops_of(stage, scoring, softening, buffer)
        if own is not None and (loops or own) != own:
            raise Unsupported("a softmax that is not along tokens")
        loops = own or loops
        form = expression_of(stage.body, known, {} if own is None else dict(own.change))
        if stage.kind == "reduce" and stage.combine in ("max", "sum"):
            tops += [form] * (stage.combine == "max")
            form = Reduction(stage.combine, form)
        elif stage.kind != "map":
            raise Unsupported("scores of which there is no softmax")
        known |= dict.fromkeys((s.buffer for s in (*stage.stores, *stage.local_stores)), form)
    if loops is None or len(tops) != 1:
        raise Unsupported("scores of which there is no softmax")
    parts = softmax_parts(tops[0])
    made = {s.buffer for stage in softening.stages for s in stage.stores}
    found = {name: parts[known[name]] for name in made if known[name] in parts}
    if set(found) != made:
        raise Unsupported("something else than a softmax of scores")
    return loops.batch, loops.tokens, found


@dataclass(frozen=True)
class _Loops:
    """Loops over batches and tokens, in the names of the kernel of scores.

    change: those names by those that a stage of the softmax has.
    """

    batch: tuple[Dim, ...]
    tokens: Dim
    change: Mapping[sympy.Symbol, sympy.Symbol] = field(compare=False)


def _loops_of(stage: RowStage, scoring: Kernel, softening: Kernel, buffer: str) -> _Loops | None:
    """The loops of a stage of the softmax that reads scores; None where it reads none."""
    if len(stage.inner) > 1:
        raise Unsupported("a softmax over several loops")
    reads = [i for i in stage.body.accesses() if i.buffer == buffer]
    if len({i.index for i in reads}) > 1:
        raise Unsupported("scores of several tokens together")
    if not reads or reads[0].index is None:
        return None
    change = names_of(scoring, (reads[0].index, (*softening.outer, *stage.inner)))
    if not stage.inner:
        raise Unsupported("a softmax that is not along tokens")
    ((token, count),) = stage.inner
    return _Loops(tuple((change[s], n) for s, n in softening.outer), (change[token], count), change)


def _summed(
    summing: Kernel,
    batch: tuple[Dim, ...],
    tokens: Dim,
    weights: dict[str, Part],
    first: RowStage,
    factors: tuple[Instruction, Instruction],
) -> tuple[Dim, tuple[str, sympy.Expr], tuple[str, sympy.Expr]]:
    """The loop over features, tokens and the query with their indices. Raises Unsupported where tokens are not summed
    by their weights."""
    stage = summing.stages[0]
    count = len(batch)
    sizes = [n for _, n in summing.outer]
    if stage.combine != "sum" or len(stage.inner) != 1 or stage.inner[0][1] != tokens[1]:
        raise Unsupported("no sum over tokens")
    if (
        len(sizes) != count + 1
        or sizes[:count] != [n for _, n in batch]
        or sizes[-1] != first.inner[0][1]
    ):
        raise Unsupported("a sum over tokens of something else than their features")
    features = first.inner[0]
    change = dict(
        zip([s for s, _ in summing.outer], [*(s for s, _ in batch), features[0]], strict=True)
    )
    change[stage.inner[0][0]] = tokens[0]
    form = expression_of(stage.body, weights, change)
    by_token = [f for f in factors if form in weighed(Operation.load(f))]
    if len(by_token) != 1:
        raise Unsupported("a sum over tokens that the softmax of their scores does not weigh")
    _check_places(stage, weights, change, batch, tokens)
    token = by_token[0]
    query = factors[1] if token is factors[0] else factors[0]
    assert token.buffer and query.buffer and token.index is not None and query.index is not None
    if coefficient(token.index, features[0]) != 1 or coefficient(query.index, features[0]) != 1:
        raise Unsupported("features that are not next to each other")
    if tokens[0] in query.index.free_symbols or coefficient(token.index, tokens[0]) is None:
        raise Unsupported("a query for each token")
    return features, (token.buffer, token.index), (query.buffer, query.index)


def _check_places(
    stage: RowStage,
    weights: Mapping[str, Part],
    change: Mapping[sympy.Symbol, sympy.Symbol],
    batch: Sequence[Dim],
    tokens: Dim,
) -> None:
    """Raises Unsupported where a token is weighed by another's weight."""
    number = row_major(batch)
    for i in stage.body.accesses():
        if i.buffer is None or i.buffer not in weights or i.index is None:
            continue
        own = number if weights[i.buffer] is Part.MASS else number * tokens[1] + tokens[0]
        if sympy.expand(i.index.xreplace(dict(change)) - own) != 0:
            raise Unsupported("weights of other tokens")


def _score(scoring: Kernel, softening: Kernel, buffer: str) -> Kernel:
    """The stages that make a score, as the softmax takes it, of a sum."""
    first, *maps = scoring.stages
    hidden = HIDDEN[0]
    start = Instruction(Value(0), "local", dtype=torch.float32, buffer=hidden, index=sympy.S.Zero)
    total = replace(
        first, kind="map", combine="", inner=(), body=Body([start], (Value(0),)), stores=(),
        local_stores=(*first.local_stores, *(replace(s, index=sympy.S.Zero) for s in first.stores)),
    )  # fmt: skip
    stages = [total]
    for stage in maps:
        own = (*stage.local_stores, *(replace(s, index=sympy.S.Zero) for s in stage.stores))
        stages.append(replace(stage, stores=(), local_stores=own))
    (top,) = (s for s in softening.stages if s.combine == "max")
    read = next(i for i in top.body.accesses() if i.buffer == buffer)
    assert read.index is not None
    change: dict[sympy.Symbol, sympy.Expr] = dict(
        names_of(scoring, (read.index, (*softening.outer, *top.inner)))
    )

    def one(i: Instruction) -> Instruction:
        here = i.op == "load" and i.buffer == buffer
        return replace(i, op="local", dtype=torch.float32, index=sympy.S.Zero) if here else i

    body = Body([one(i) for i in top.body.instructions], top.body.results).substitute(change)
    stages.append(
        replace(top, kind="map", combine="", inner=(), body=body, stores=(), local_stores=())
    )
    return Kernel(scoring.outer, tuple(stages), {**scoring.locals, hidden: Local(hidden, 1)})


def _tail(summing: Kernel, batch: tuple[Dim, ...], features: Dim) -> Kernel:
    """The stages after the sum, in symbols of batches and features."""
    hidden = HIDDEN[1]
    names = [*(s for s, _ in batch), features[0]]
    change: dict[sympy.Symbol, sympy.Expr] = dict(
        zip([s for s, _ in summing.outer], names, strict=True)
    )
    first, *maps = summing.stages
    if any(s.kind != "map" or s.inner for s in maps):
        raise Unsupported("weighed tokens that are reduced again")

    def moved(stage: RowStage) -> RowStage:
        return replace(
            stage,
            body=stage.body.substitute(change),
            stores=tuple(Store(s.buffer, s.index.xreplace(change)) for s in stage.stores),
        )

    start = Instruction(Value(0), "local", dtype=torch.float32, buffer=hidden, index=sympy.S.Zero)
    total = replace(first, kind="map", combine="", inner=(), body=Body([start], (Value(0),)))
    stages = tuple(map(moved, (total, *maps)))
    return Kernel((*batch, features), stages, {**summing.locals, hidden: Local(hidden, 1)})
