"""Values that another kernel makes where it needs them, rather than reading them from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent_backend.codegen.analysis.passes import Pass
from cuda_agent_backend.codegen.cuda.common.flat_loops import POSITION, Flat, flat_body, flatten
from cuda_agent_backend.codegen.cuda.common.lane_printer import LanePrinter, local_reader
from cuda_agent_backend.codegen.cuda.common.parts import needs_wide
from cuda_agent_backend.codegen.cuda.pointwise.writer import map_dims, single_pass, stage_lines
from cuda_agent_backend.codegen.cuda.scatter.match import Produced
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.kernel import Kernel
from cuda_agent_backend.codegen.ir.region import LoweredRegion


@dataclass(frozen=True)
class Producer:
    """Values as a pointwise kernel makes them."""

    form: Produced
    region: LoweredRegion
    kernel: Kernel
    steps: Pass
    flat: Flat
    index: str
    """The type of a position among them."""

    @property
    def line(self) -> int:
        """Of so many neighbours all loops but the innermost are at one place, as vectors want them."""
        dims = map_dims(self.kernel, self.steps)
        return dims[-1][1] if dims else 1

    @staticmethod
    def of(form: Produced, region: LoweredRegion, kernels: Sequence[Kernel]) -> Producer:
        """Raises Unsupported where they are made in another way, with the reason."""
        steps = single_pass(kernels[0]) if len(kernels) == 1 else None
        if steps is None:
            raise Unsupported("a scatter of values that are not made each by itself")
        index = "int64_t" if needs_wide(region, kernels[0]) else "int"
        flat = flatten(map_dims(kernels[0], steps), index)
        stores = [s for stage in steps.stages for s in stage.stores]
        if [(s.buffer, flat.of(s.index)) for s in stores] != [(region.outputs[0], POSITION)]:
            raise Unsupported("a scatter of values that are made in another order")
        return Producer(form, region, kernels[0], steps, flat, index)

    def lines(self, vector: int, position: str) -> list[str]:
        """Statements that return ``vector`` values from ``position`` on."""
        names = dict(zip(self.region.inputs, self.form.inputs, strict=True))
        made: dict[str, str] = {}
        printer = LanePrinter(
            POSITION,
            lambda b: f"in{names[b]}",
            local_reader(made),
            lambda b: self.region.buffers[b].dtype,
            "",
            vector,
            named={},
        )
        return [
            f"const {self.index} j = {position};",
            *self.flat.statements,
            *stage_lines(
                self.kernel, self.steps, printer, made,
                lambda _, value: f"return ca::to<float>({value});",
                lambda body: flat_body(body, self.flat),
            ),
        ]  # fmt: skip
