"""Numbers in unsigned types that eager cannot make run in eager all the same."""

import torch
from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent_backend.graph.unsigned import CONVERT, IOTA, count_in_signed


def graph_of(dtype: torch.dtype) -> torch.fx.GraphModule:
    def diagonal(x: torch.Tensor) -> torch.Tensor:
        numbers = torch.ops.prims.iota(
            4, start=1, step=2, dtype=dtype, device="cpu", requires_grad=False
        )
        return torch.where(numbers.unsqueeze(-1) == numbers, x, 0.0)

    return make_fx(diagonal, tracing_mode="fake")(torch.ones(4, 4))


def test_such_numbers_are_counted_in_a_signed_type_and_converted() -> None:
    module = graph_of(torch.uint16)
    count_in_signed(module.graph)
    module.graph.lint()
    (made,) = module.graph.find_nodes(op="call_function", target=IOTA)
    (converted,) = module.graph.find_nodes(op="call_function", target=CONVERT)
    assert made.meta["val"].dtype == torch.int64 and converted.meta["val"].dtype == torch.uint16
    assert torch.equal(Interpreter(module).run(torch.ones(4, 4)), torch.eye(4))


def test_other_numbers_stay() -> None:
    module = graph_of(torch.int32)
    before = str(module.graph)
    count_in_signed(module.graph)
    assert str(module.graph) == before
