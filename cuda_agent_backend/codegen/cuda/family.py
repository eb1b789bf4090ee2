"""What a family of CUDA kernels answers: whether it fits a kernel, which schedules it has, and the source of one."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from cuda_agent_backend.codegen.analysis.gemm import GemmForm, numbers_of
from cuda_agent_backend.codegen.cuda.common.parts import Emitted
from cuda_agent_backend.codegen.cuda.gemm.filter_taps import with_taps_apart
from cuda_agent_backend.codegen.family import Family
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import NotCovered, Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.parameters import P
from cuda_agent_backend.codegen.ir.region import LoweredRegion
from cuda_agent_backend.codegen.ir.schedule import Parameter

M = TypeVar("M")
"""What a family finds in a kernel that it fits."""
Parameters = dict[str, Parameter]
Joined = tuple[LoweredRegion, tuple[Kernel, ...]]


class Place(enum.Enum):
    """When a family's schedules have their turn. Within a place the registry's order holds."""

    POINTWISE = "kernels of one pass without a reduction"
    FIRST = "matrix products for which tiles are no match: before all other products"
    TILED_FIRST = "matrix products in a way of their own: before the other tiles"
    TILED = "matrix products in tiles: by turns with those of `BOXED`"
    BOXED = "convolutions in boxes of the image: the first family that has any"
    ROWS = "a team of threads for each row: the last, but by turns with tiles where a product is narrow"


@dataclass(frozen=True)
class Problem:
    """A kernel of a region, for a device. most: how many schedules are wanted."""

    kernel: Kernel
    region: LoweredRegion
    device: DeviceFacts
    most: int = 1

    @cached_property
    def numbers(self) -> GemmForm | None:
        """The kernel as a matrix product of numbers as they lie in memory."""
        return numbers_of(self.kernel)

    @cached_property
    def product(self) -> tuple[Kernel, GemmForm | None]:
        """The kernel, and it as a matrix product, after taps of a filter have become loops of their own."""
        return with_taps_apart(self.kernel)


class CudaFamily(Family[P]):
    """A family whose schedules have one entry for each of its kernels, named by `sketch`."""

    def headers(self, given: Mapping[str, Parameter], halves: bool) -> tuple[str, ...]:
        """The headers that its source needs beside `cuda/common/prelude.cuh`, those that others build on first.

        halves: whether the region has buffers of 16 bits.
        """
        return ()


class KernelFamily(CudaFamily[P], Generic[P, M]):
    """A family of single kernels."""

    place: ClassVar[Place]

    @abstractmethod
    def match(self, problem: Problem) -> M | NotCovered:
        """What it finds in a kernel that it fits, or why it does not."""

    @abstractmethod
    def schedules(self, match: M, problem: Problem) -> list[Parameters]:
        """Those worth trying, best guess first; none where another family is surely better."""

    @abstractmethod
    def emit(
        self, match: M, problem: Problem, given: Mapping[str, Parameter], name: str
    ) -> Emitted:
        """The kernel's source and launches.

        given: parameters that `refusal` finds nothing against. name: of the function.

        Raises:
            Unsupported: the schedule does not fit the kernel or the device, with the reason.
        """

    def proposals(self, problem: Problem) -> list[Parameters]:
        """As `schedules`; none where the family does not fit."""
        match = self.match(problem)
        return [] if isinstance(match, NotCovered) else self.schedules(match, problem)

    def source(self, problem: Problem, given: Mapping[str, Parameter], name: str) -> Emitted:
        """As `emit`, of anything that a policy may give.

        Raises:
            Unsupported: the family does not fit, or the schedule does not, with the reason.
        """
        match = self.match(problem)
        if isinstance(match, NotCovered):
            raise Unsupported(match.reason)
        refusal = self.refusal(given)
        if refusal is not None:
            raise Unsupported(refusal.reason)
        return self.emit(match, problem, given, name)


class Order(enum.Enum):
    """Whether being one kernel with what follows is preferred to being reduced in tiles (see `join_schedules`)."""

    BEFORE_REDUCTION = enum.auto()
    REDUCTION = enum.auto()
    AFTER_REDUCTION = enum.auto()


class JoinFamily(CudaFamily[P], Generic[P, M]):
    """A family of kernels that do the work of those behind them too."""

    order: ClassVar[Order]

    @abstractmethod
    def match(
        self, region: LoweredRegion, kernels: tuple[Kernel, ...], number: int
    ) -> M | NotCovered:
        """What kernel ``number`` is with those that follow it, or why it is not one with them."""

    @abstractmethod
    def schedules(
        self, match: M, region: LoweredRegion, device: DeviceFacts, most: int
    ) -> list[Parameters]:
        """Up to ``most`` worth trying, best guess first."""

    @abstractmethod
    def joined(self, match: M, region: LoweredRegion, given: Mapping[str, Parameter]) -> Joined:
        """The region and its kernels when they are one.

        Raises:
            Unsupported: the schedule does not fit, with the reason.
        """

    @abstractmethod
    def emit(
        self,
        match: M,
        region: LoweredRegion,
        given: Mapping[str, Parameter],
        name: str,
        device: DeviceFacts,
    ) -> Emitted:
        """The source and launches; arguments are as in `KernelFamily.emit`.

        Raises:
            Unsupported: the schedule does not fit the kernels or the device, with the reason.
        """
