"""How a row kernel is laid over the GPU: who works on which element of which row.

The threads of one row are a *team*. With lanes "inner" a row is contiguous in memory: a thread holds ``vector``
neighbouring elements of it, a block ``across`` rows. With lanes "outer" neighbouring rows are contiguous: a thread
holds ``vector`` rows, a block ``across * vector`` of them. A row may be cut into ``segments``, one block each, which
meet in a cluster ("cluster"), by way of memory while all are on the device ("grid"), or by launching again ("split").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent_backend.codegen.ir.device import MAX_THREADS, WARP, DeviceFacts, ceildiv
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.parameters import integer, require, string, switch
from cuda_agent_backend.codegen.ir.schedule import Parameter


@dataclass(frozen=True)
class Layout:
    """How a kernel's ``rows`` of ``points`` elements are laid over the GPU.

    The fields that are no schedule parameters are facts of the kernel: ``ordered`` where it scans, ``wide`` where
    indices need 64 bits, ``pairs`` where a thread's elements, of which none is kept, are neighbours two by two (lanes
    outer).
    """

    points: int
    rows: int
    lanes: str = string(
        '"inner": threads run along a row; "outer": across rows',
        among=("inner", "outer"),
        default="inner",
    )
    vector: int = integer("neighbouring elements, or rows, of a thread", default=1)
    team: int = integer("threads of a row, a power of two", default=32)
    across: int = integer("rows, or vectors of rows, of a block", default=1)
    segments: int = integer("blocks that share a row", default=1)
    exchange: str = string(
        'how they meet: in a cluster ("cluster"), by way of memory while all are on the device ("grid"), or by '
        'launching again ("split"); "block" where there is one segment',
        among=("block", "cluster", "grid", "split"),
        default="block",
    )
    keep: str = string(
        'where what several passes read stays meanwhile: "registers", "shared" (memory), or "none" (read and computed '
        "again)",
        among=("registers", "shared", "none"),
        default="registers",
    )
    unroll: int = integer("elements of a thread in flight where they are not all kept", default=4)
    blocks: int = integer(
        "blocks for each multiprocessor that registers are limited to, and that stay there in a grid",
        default=1,
    )
    stages: int = integer('rows in flight of a block that stays (with "shared")', default=1)
    held: int = integer(
        'how many of its chunks a thread keeps (with "shared"), the first ones; 0: all. The others are read again by '
        "each pass, in turn upwards and downwards, so that what was read last comes first, while the L2 cache has it",
        least=0,
        default=0,
    )
    ahead: int = integer(
        "chunks that a thread asks for together before it works on the first (lanes inner, none kept): functions with "
        "a branch for rare numbers keep the compiler from doing so; 0: as the compiler likes",
        least=0,
        default=0,
    )
    stream: int = switch("1 for stores that leave the L2 cache first", default=0, flips=True)
    once: int = switch("1 for loads that leave the L2 cache first", default=1, flips=True)
    ordered: bool = False
    together: int = integer("neighbouring rows that are one row here", default=1)
    whole: int = switch(
        "1 for segments of whole tiles (split rows, lanes inner), the last of which has the rest: no other block waits "
        "for loads of a tile that is not full after those of all the others",
        default=0,
    )
    wide: bool = False
    pairs: bool = False
    square: int = integer(
        "1 where a thread has as many neighbours along the row at once as it has rows (lanes outer)",
        least=0,
        default=0,
        fixed=True,
    )

    @property
    def inner(self) -> bool:
        return self.lanes == "inner"

    @property
    def along(self) -> int:
        """Neighbours along the row that a thread meets at once."""
        return self.vector if self.inner or self.square else 1

    @property
    def threads(self) -> int:
        return self.team * self.across

    @property
    def tile(self) -> int:
        """Elements of a row that its team holds at once."""
        return self.team * self.along

    @property
    def segment(self) -> int:
        """Elements of a row in one segment (the last one may have fewer)."""
        size = ceildiv(self.points, self.segments)
        unit = self.tile if self.whole else self.along
        return ceildiv(size, unit) * unit

    @property
    def chunks(self) -> int:
        """Vectors (inner), elements (outer) or squares of a row segment that one thread meets."""
        return ceildiv(self.segment, self.tile)

    @property
    def partial(self) -> bool:
        """Whether part of a row is kept, and the rest read again."""
        return 0 < self.held < self.chunks

    @property
    def kept_chunks(self) -> int:
        """Chunks of a thread that are kept between passes."""
        return self.held if self.partial else self.chunks

    @property
    def even(self) -> bool:
        """Whether all segments have the same size."""
        return self.segment * self.segments == self.points

    @property
    def blocked(self) -> bool:
        """Whether a thread's elements are neighbours along the row; scans with lanes outer need that."""
        return self.ordered and not self.inner

    @property
    def clustered(self) -> bool:
        return self.exchange == "cluster" and self.segments > 1

    @property
    def is_split(self) -> bool:
        return self.exchange == "split" and self.segments > 1

    @property
    def in_grid(self) -> bool:
        return self.exchange == "grid" and self.segments > 1

    @property
    def scalar_lanes(self) -> int:
        """Lanes of a value that a row has one of."""
        return 1 if self.inner else self.vector

    @property
    def warps(self) -> int:
        return ceildiv(self.team, WARP)

    @property
    def index_type(self) -> str:
        return "int64_t" if self.wide else "int"

    def check(self, device: DeviceFacts) -> None:
        """Raise Unsupported where the parameters contradict each other or the device."""
        power = self.team & (self.team - 1) == 0
        problems = {
            "threads of a block": not 1 <= self.threads <= MAX_THREADS,
            "team is no power of two": not power,
            "a vector across the end of a row": self.inner and self.points % self.vector != 0,
            "segments without an exchange": self.segments > 1 and self.exchange == "block",
            "a cluster on this device": self.exchange == "cluster"
            and (self.segments > 16 or not device.has_clusters),
            "several rows of a block in a cluster": self.exchange == "cluster"
            and self.inner
            and (self.across > 1 or self.team < WARP),
            "columns, scans, or several rows of a block in a grid": self.in_grid
            and (not self.inner or self.ordered or self.across > 1 or self.team < WARP),
            "more segments than the device has room for at once": self.in_grid
            and self.segments > self.blocks * device.sm_count,
            "empty segments": (self.segments - 1) * self.segment >= self.points,
            "stages without shared memory": self.stages > 1
            and (self.keep != "shared" or self.across > 1),
            "stages of columns": self.stages > 1 and not self.inner,
            "a part held elsewhere than in shared memory": self.held > 0
            and (self.keep != "shared" or self.stages > 1 or self.ordered),
            "squares of what is kept, or of single elements": self.square > 0
            and (self.inner or self.keep != "none" or self.vector < 2 or self.square > 1),
            "a square across the end of a row": self.square > 0 and self.points % self.vector != 0,
            "chunks asked for together that are kept, or of columns": self.ahead > 0
            and (self.keep != "none" or self.ordered or not self.inner),
            "whole tiles of a row that is not cut by launches": bool(self.whole)
            and not (self.is_split and self.inner),
            "half a warp": self.threads % WARP != 0,
            "too much in registers": self.keep == "registers" and self.chunks * self.vector > 256,
        }
        for problem, applies in problems.items():
            if applies:
                raise Unsupported(f"schedule with {problem}")


def read_layout(
    parameters: Mapping[str, Parameter], points: int, rows: int, ordered: bool, wide: bool
) -> Layout:
    """The layout that schedule ``parameters`` describe. Raises Unsupported on unknown or malformed ones."""
    facts = {"points": points, "rows": rows, "ordered": ordered, "wide": wide}
    return require(Layout, parameters, **facts)
