"""A task's operators in the place of its kernel."""

import pytest
import torch

from sandbox.graph.stand_in import StandIn
from sandbox.task.node import Node
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, NodeRef, Task, TaskError


def task_of(op: str = "aten.exp.default") -> Task:
    """An operator on a matrix that lies column by column, and the transpose of the result."""
    columns, rows = TensorSpec("float32", (4, 6), (1, 4)), TensorSpec("float32", (6, 4), (4, 1))
    nodes = (
        Node(op, {"self": InputRef(0)}),
        Node("aten.permute.default", {"self": NodeRef(0), "dims": (1, 0)}),
    )
    return Task("cpu", (columns,), nodes, (NodeRef(0), NodeRef(1)), (columns, rows))


@pytest.mark.parametrize("lies", ["as the task says", "otherwise"])
def test_values_layouts_and_owners_are_those_of_a_kernel(lies: str) -> None:
    x = torch.randn(6, 4).t()
    x = x if lies == "as the task says" else x.contiguous()
    first, second = StandIn(task_of())(x.requires_grad_())
    assert torch.equal(first, x.exp()) and torch.equal(second, x.exp().t())
    assert first.stride() == (1, 4) and second.stride() == (4, 1)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert not first.requires_grad


def test_inputs_that_the_kernel_does_not_take_are_errors() -> None:
    with pytest.raises(RuntimeError, match="the kernel takes"):
        StandIn(task_of())(torch.randn(4, 7))


def test_an_operator_that_this_torch_does_not_have_is_said() -> None:
    with pytest.raises(TaskError, match="no operator"):
        StandIn(task_of("aten.of_tomorrow.default"))
