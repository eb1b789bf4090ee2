"""The sketches' schedule parameters, as the sketches' own modules explain them."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, fields
from typing import Any

from cuda_agent_backend.codegen import family as registered

ALSO = {"sketch", "rewrite"}
"""Parameters of any kernel: which sketch prints it, and (of the first) which rewritten form it is for."""


@dataclass(frozen=True)
class Family:
    """A sketch. name: the value of the parameter `sketch`; empty where a schedule has no such parameter."""

    name: str
    what: str
    parameters: tuple[str, ...]
    meaning: str


_EXCHANGE = '`exchange` names that way; "block" where there is one segment.'


def families(target: str) -> list[Family]:
    """All sketches of a target."""
    return _cpu() if target == "cpu" else _cuda()


def table(target: str) -> str:
    """In Markdown: one paragraph for each sketch."""
    said = []
    for family in families(target):
        name = f' (`"sketch": "{family.name}"`)' if family.name else ""
        names = ", ".join(f"`{p}`" for p in family.parameters)
        said.append(f"**{family.what}**{name}: {names}. {family.meaning}")
    return "\n\n".join(said)


def _cpu() -> list[Family]:
    from cuda_agent_backend.codegen.cpu import attention as cpu_attention
    from cuda_agent_backend.codegen.cpu import gemm as cpu_product
    from cuda_agent_backend.codegen.cpu import writer as cpu

    nest = ("lanes", "width", "unroll", "ahead", "stream", "threads", "chunk")
    return [
        Family("", "Loop nests", nest, _list(cpu)),
        Family("", "Matrix products", ("rows", "width"), _paragraph(cpu_product)),
        Family("", "Attention", ("rows", "keys", "width"), _paragraph(cpu_attention)),
    ]


def _cuda() -> list[Family]:
    from cuda_agent_backend.codegen.cuda.attention import float32 as cuda_attention
    from cuda_agent_backend.codegen.cuda.attention import half as cuda_attention_half
    from cuda_agent_backend.codegen.cuda.attention.pooling import writer as cuda_weighed
    from cuda_agent_backend.codegen.cuda.channel_gather import writer as cuda_channels
    from cuda_agent_backend.codegen.cuda.channels_last import writer as cuda_crossed
    from cuda_agent_backend.codegen.cuda.conv.halo import writer as cuda_halo
    from cuda_agent_backend.codegen.cuda.conv.transposed import writer as cuda_phases
    from cuda_agent_backend.codegen.cuda.gemm import tiles as cuda_tiles
    from cuda_agent_backend.codegen.cuda.gemm import writer as cuda_contract
    from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu import writer as cuda_contract_gate
    from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool import writer as cuda_contract_pool
    from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce import writer as cuda_contract_reduce
    from cuda_agent_backend.codegen.cuda.gemm.epilogue.row import writer as cuda_contract_rows
    from cuda_agent_backend.codegen.cuda.gemm.short_k import writer as cuda_short
    from cuda_agent_backend.codegen.cuda.gemm.skinny.family import Skinny
    from cuda_agent_backend.codegen.cuda.gemm.small import writer as cuda_small
    from cuda_agent_backend.codegen.cuda.library import writer as cuda_library
    from cuda_agent_backend.codegen.cuda.pointwise.family import Pointwise
    from cuda_agent_backend.codegen.cuda.recurrent import writer as cuda_recurrent
    from cuda_agent_backend.codegen.cuda.reroll import writer as cuda_rolled
    from cuda_agent_backend.codegen.cuda.rows import layout as cuda_layout
    from cuda_agent_backend.codegen.cuda.rows.loss import writer as cuda_totals
    from cuda_agent_backend.codegen.cuda.scatter import writer as cuda_scatter
    from cuda_agent_backend.codegen.cuda.sort import select as cuda_select
    from cuda_agent_backend.codegen.cuda.sort import writer as cuda_sort
    from cuda_agent_backend.codegen.cuda.transpose import writer as cuda_transpose

    row = _fields(cuda_layout.Layout, {"points", "rows", "ordered", "wide"})
    scatter = ("scatter", "threads", "flight", "tile", "vector", "test")
    boxed = ("box", "tile_n", "warp_m", "warp_n", "products")
    return [
        _of(Pointwise()),
        Family("row", "Reductions, norms, softmax, scans over rows", row,
               f"{_rest(cuda_layout)} {_EXCHANGE} {_rest(cuda_layout.Layout)}"),
        Family(cuda_transpose.SKETCH, "Pointwise work across two loops", ("wide", "tall", "joined", "vector"),
               _rest(cuda_transpose)),
        Family(cuda_crossed.SKETCH, "Windows along an image, channels stored together", ("vector", "rows", "deep"),
               _rest(cuda_crossed)),
        Family(cuda_channels.SKETCH, "Gathers along channels that lie apart", ("vector", "wide"),
               _rest(cuda_channels)),
        Family(cuda_contract.SKETCH, "Products and convolutions on tensor cores", _fields(cuda_tiles.Tiles),
               _rest(cuda_tiles)),
        Family(cuda_contract_reduce.SKETCH, "The same, reduced in their tiles", ("split",),
               _paragraph(cuda_contract_reduce)),
        Family(cuda_contract_pool.SKETCH, "The same, pooled in their tiles", ("split", "tile_m"),
               _paragraph(cuda_contract_pool)),
        Family(cuda_contract_gate.SKETCH, "The same, whose parts are combined in their tiles", ("tile_n",),
               _paragraph(cuda_contract_gate)),
        Family(cuda_contract_rows.SKETCH, "The same, with whole rows done in their tiles", ("split", "tile_n"),
               _paragraph(cuda_contract_rows)),
        Family(cuda_halo.SKETCH, "Convolutions that copy their image once", boxed, _paragraph(cuda_halo)),
        Family(cuda_phases.SKETCH, "Transposed convolutions with all phases in a block", boxed,
               _paragraph(cuda_phases)),
        _of(Skinny()),
        Family(cuda_short.SKETCH, "Sums of few terms with many results", _fields(cuda_short.ShortLayout),
               f"{_rest(cuda_short.ShortLayout, 0)} `threads` of a block."),
        Family(cuda_small.SKETCH, "Many small products", _fields(cuda_small.SmallLayout),
               f"{_rest(cuda_small.SmallLayout, 0)} `threads` of a block."),
        Family(cuda_weighed.SKETCH, "Tokens weighed by a softmax of their scores", _fields(cuda_weighed.Blocks),
               _paragraph(cuda_weighed)),
        Family(cuda_totals.SKETCH, "Rows that are made one number of", (cuda_totals.STAYING,),
               _paragraph(cuda_totals)),
        Family(cuda_library.SKETCH, "Products and convolutions by cuBLAS and cuDNN", ("kernels", "last", "benchmark"),
               _paragraph(cuda_library)),
        Family(cuda_rolled.SKETCH, "Loops over steps that tracing wrote out", ("each", "threads", "ahead", "before"),
               _paragraph(cuda_rolled)),
        Family("", "Sorts", _fields(cuda_sort.Team), _paragraph(cuda_sort)),
        Family("", "Selections (topk)", _fields(cuda_select.Block), _paragraph(cuda_select)),
        Family("", "Scatters", scatter, _paragraph(cuda_scatter)),
        Family("", "Attention", _fields(cuda_attention.Blocks), _paragraph(cuda_attention)),
        Family("", "Attention in half precision", _fields(cuda_attention_half.HalfBlocks),
               _paragraph(cuda_attention_half)),
        Family("", "Recurrent layers", _fields(cuda_recurrent.Blocks), _paragraph(cuda_recurrent)),
    ]  # fmt: skip


def _of(family: registered.Family[Any]) -> Family:
    known = family.meanings()
    said = " ".join(f"`{name}`: {meaning.text}." for name, meaning in known.items())
    name = family.name if family.is_named else ""
    return Family(name, family.title, tuple(known), f"{family.docs} {said}".strip())


def _fields(layout: Any, without: set[str] | None = None) -> tuple[str, ...]:
    return tuple(f.name for f in fields(layout) if f.name not in (without or set()))


def _paragraph(module: Any) -> str:
    """What a module's description says after "Schedule parameters:"."""
    found = inspect.getdoc(module) or ""
    return _plain(found.partition("Schedule parameters:")[2].partition("\n\n")[0])


def _list(module: Any) -> str:
    """A description's list of parameters, one to a line."""
    found = (inspect.getdoc(module) or "").partition("Schedule parameters of one kernel:")[2]
    return "\n" + re.sub(r"(?m)^``(\w+)``\s+", r"* `\1`: ", re.sub(r"\n +", " ", found.strip()))


def _rest(documented: Any, skip: int = 1) -> str:
    """A description without its first paragraphs."""
    parts = (inspect.getdoc(documented) or "").split("\n\n")
    return _plain(" ".join(parts[skip:] or parts))


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
