"""The class templates of the CUDA headers of GEMMs, with their arguments by name.

A dataclass stands for a template, its fields for the template's parameters, in the header's order. `str` gives C++.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Template:
    """A class template; ``cuda`` is its name in the headers, in namespace ``ca``."""

    cuda: ClassVar[str]

    def __str__(self) -> str:
        return f"ca::{self.cuda}<{_arguments(self)}>"


def _arguments(of: DataclassInstance) -> str:
    values = (getattr(of, f.name) for f in fields(of))
    return ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)


# What multiplies: its types A and B are those of the operands.


@dataclass(frozen=True)
class WarpTile:
    """The arguments that templates of warps begin with."""

    block_m: int
    block_n: int
    depth: int
    warp_m: int
    warp_n: int
    warps_k: int
    stages: int

    def __str__(self) -> str:
        return _arguments(self)


@dataclass(frozen=True)
class WarpMma(Template):
    """Warps multiply float32 operands, split into parts, or as TF32 (`gemm.cuh`)."""

    cuda = "contraction"
    tile: WarpTile
    run: int
    products: int
    a: str = "A"
    b: str = "B"


@dataclass(frozen=True)
class HalfWarpMma(Template):
    """Warps multiply 16-bit operands (`gemm_half.cuh`)."""

    cuda = "half_contraction"
    tile: WarpTile
    a: str = "A"
    b: str = "B"


@dataclass(frozen=True)
class SplitWgmma(Template):
    """Warp groups multiply float32 operands that other warp groups split (`gemm_relay.cuh`).

    in_registers: 1 where B is split in registers, 0 where it is in shared memory.
    """

    cuda = "relay_contraction"
    block_m: int
    block_n: int
    stages: int
    run: int
    products: int
    in_registers: int
    a: str = "A"
    b: str = "B"


@dataclass(frozen=True)
class HalfWgmma(Template):
    """Warp groups multiply 16-bit operands, which they copy themselves (`gemm_wide_half.cuh`)."""

    cuda = "wide_half_contraction"
    block_m: int
    block_n: int
    stages: int
    a: str = "A"
    b: str = "B"


@dataclass(frozen=True)
class TmaWgmma(HalfWgmma):
    """The same, but TMA copies the operands (`gemm_tma.cuh`)."""

    cuda = "boxed_half_contraction"


# Operands: how they are copied to shared memory and lie there.


@dataclass(frozen=True)
class Operand(Template):
    """An operand of float32. pairs: threads read two neighbouring terms at a time."""

    cuda = "operand"
    rows: int
    depth: int
    along_k: bool
    vector: int
    threads: int
    pairs: bool


@dataclass(frozen=True)
class QuantizedOperand(Template):
    """An operand of integers (``element``) that stand for numbers; ``zero`` is the one that stands for 0."""

    cuda = "coded_operand"
    element: str
    zero: int | None
    rows: int
    depth: int
    along_k: bool
    vector: int
    threads: int


@dataclass(frozen=True)
class HalfOperand(Template):
    """An operand of 16 bits."""

    cuda = "half_operand"
    element: str
    rows: int
    depth: int
    along_k: bool
    vector: int
    threads: int


@dataclass(frozen=True)
class WgmmaOperand(Template):
    """An operand of 16 bits in the order in which warp groups read shared memory."""

    cuda = "wide_half_operand"
    element: str
    rows: int
    along_k: bool
    vector: int
    threads: int


@dataclass(frozen=True)
class TmaOperand(Template):
    """The same, copied by TMA."""

    cuda = "boxed_operand"
    element: str
    rows: int
    along_k: bool


# Convolutions that keep the part of the image that a tile reads in shared memory.


@dataclass(frozen=True)
class HaloTile:
    """The arguments that templates of convolutions begin with. positions: of the image in shared memory."""

    tile_m: int
    tile_n: int
    warp_m: int
    warp_n: int
    positions: int
    channels: int

    def __str__(self) -> str:
        return _arguments(self)


@dataclass(frozen=True)
class HaloConvolution(Template):
    """A tile's convolution (`halo.cuh`)."""

    cuda = "halo_contraction"
    tile: HaloTile
    taps: int
    near: int
    parts: int


@dataclass(frozen=True)
class SubPixelConvolution(Template):
    """A tile's transposed convolution (`transposed.cuh`). visits: the type that lists which taps each phase has."""

    cuda = "phased_contraction"
    tile: HaloTile
    visits: str
    near: int
    parts: int
