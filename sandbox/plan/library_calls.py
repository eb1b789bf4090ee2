"""Library calls of a launch plan: matrix products and convolutions that torch's own libraries compute.

The launcher makes them through ATen, so that TF32, reduced precision and determinism are the user's. They are data like
all of a plan: which numbers of which buffers are read and written is checked when the plan is made
(`sandbox.plan.library_check`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """Elements of a buffer: the one at index i lies ``offset + sum(i * stride)`` elements behind the buffer's first."""

    buffer: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def end(self) -> int:
        """Elements from the buffer's first one to behind the last one that is viewed."""
        last = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return self.offset + last + 1


@dataclass(frozen=True)
class Gemm:
    """``out = a @ b``, or ``c + a @ b``.

    a: [m, k], b: [k, n], out: [m, n], or each with one dimension of batches before these. c: expands to out's shape.
    """

    a: View
    b: View
    out: View
    c: View | None = None

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        """What is read, with names."""
        return (("a", self.a), ("b", self.b), *((("c", self.c),) if self.c else ()))


@dataclass(frozen=True)
class Convolution:
    """``out`` is the convolution of x with weight, plus bias where there is one; of one to three dimensions.

    x: [batch, channels, ...], out: [batch, channels of the result, ...], both as torch has them, in channels-first or
    channels-last order: out's order is the one that is computed in. weight: [channels of the result, channels / groups,
    ...]; where transposed [channels, channels of the result / groups, ...]. bias: [channels of the result].
    stride, padding, dilation, output_padding: a number for each dimension.
    benchmark: cuDNN measures its deterministic algorithms at a shape's first call. Where the user has it measure them
    all, or asks for determinism, it does that instead.
    """

    x: View
    weight: View
    out: View
    bias: View | None = None
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    benchmark: bool = False

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        """What is read, with names."""
        own = (("x", self.x), ("weight", self.weight))
        return (*own, *((("bias", self.bias),) if self.bias else ()))


LibraryCall = Gemm | Convolution
