"""What is parsed from outside: how each is read, a valid text to start from, and the errors that are clear answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from cuda_agent_backend.agent.protocol import BadArguments, ToolCall, parse_arguments
from cuda_agent_backend.agent.tools.toolbox import tool_schemas
from kernel_cache.fields import RecordError
from kernel_cache.key import KernelKey
from kernel_cache.record import NegativeRecord, Record
from sandbox.graph.build import build_graph
from sandbox.plan.expressions import ExpressionError, evaluate
from sandbox.plan.plan import Buffer, Launch, Plan, PlanError, Scalar, TensorMap, TritonLaunch
from sandbox.task.specs import TensorSpec
from sandbox.task.task import DType, InputRef, Node, NodeRef, Task, TaskError

LONGEST = 1000
"""Characters of an error's message: it is told in one line."""

SPEC = TensorSpec("float32", (4, 8), (8, 1))
TASK = Task(
    "cpu",
    (SPEC, SPEC),
    (
        Node("aten.add.Tensor", {"self": InputRef(0), "other": InputRef(1), "alpha": 2.5}),
        Node("aten.sum.dim_IntList", {"self": NodeRef(0), "dim": (1,), "dtype": DType("float32")}),
    ),
    (NodeRef(1),),
    (TensorSpec("float32", (4,), (1,)),),
)
PLAN = Plan(
    "cuda",
    (
        Buffer("x", "input", SPEC),
        Buffer("y", "output", SPEC),
        Buffer("t", "temporary", TensorSpec("float32", (64,), (1,))),
    ),
    (
        Launch(
            "kernel",
            ("ceildiv(n, 32)", 1, 1),
            (32, 1, 1),
            "4 * n",
            (
                "x",
                "y",
                "t",
                Scalar("i64", "n + 1"),
                Scalar("f32", 0.5),
                TensorMap("t", (32, 2), (32,), (32, 2)),
            ),
        ),
    ),
    {"n": 32},
)
TRITON = Plan(
    "cuda",
    PLAN.buffers,
    (
        TritonLaunch(
            "kernel",
            ("ceildiv(n, 32)", 1, 1),
            ("x", "y", Scalar("i32", "n")),
            (("A", 0.5), ("B", 64)),
        ),
    ),
    {"n": 32},
)
KEY = KernelKey(TASK.digest, "cpu", "native", "{}", False)
RECORD = Record(
    key=KEY,
    task=TASK.to_json(),
    language="cuda",
    origin="sketch",
    label="",
    source="void kernel() {}",
    plan=PLAN.to_json(),
    binary_digest="0" * 64,
    evidence={
        "verifier": "2",
        "toolchain": "g++",
        "driver": None,
        "policy": "search",
        "samples": [1.0],
        "errors": {},
    },
    created=1.0,
)
NEGATIVE = NegativeRecord(KEY, "search", {"seconds": 60}, "nothing wins", 1.0, 2.0)


@dataclass(frozen=True)
class Parser:
    """`read` takes a text and raises one of `errors`, each of which says what is wrong, or nothing."""

    read: Callable[[str], object]
    valid: str
    errors: tuple[type[Exception], ...]

    def survives(self, text: str) -> None:
        """Read the text. Raises AssertionError where the answer is not a clear one, and whatever is a bug."""
        try:
            self.read(text)
        except self.errors as error:
            message = str(error)
            assert message, "an error without a word"
            assert len(message) <= LONGEST, f"an error of {len(message)} characters"


def _tool_call(text: str) -> object:
    """The arguments of every tool."""
    refused: list[BadArguments] = []
    for schema in tool_schemas():
        try:
            parse_arguments(ToolCall("1", schema["function"]["name"], text), schema)
        except BadArguments as error:
            refused.append(error)
    if len(refused) == len(tool_schemas()):
        raise refused[-1]
    return None


def _plan(text: str) -> object:
    plan = Plan.from_json(text)
    again = Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json(), "another plan after writing it"
    return plan.launches()


def _task(text: str) -> object:
    task = Task.from_json(text)
    assert Task.from_json(task.to_json()).digest == task.digest, "another task after writing it"
    return task


def _built(text: str) -> object:
    return build_graph(Task.from_json(text))


def _record(text: str) -> object:
    record = Record.from_json(text)
    assert Record.from_json(record.to_json()) == record, "another record after writing it"
    return record


def _negative(text: str) -> object:
    from kernel_cache.fields import Fields

    return NegativeRecord.from_fields(Fields.parse("record", text)._left)


PARSERS = {
    "plan": Parser(_plan, PLAN.to_json(), (PlanError,)),
    "plan for Triton": Parser(_plan, TRITON.to_json(), (PlanError,)),
    "task": Parser(_task, TASK.to_json(), (TaskError,)),
    "graph of a task": Parser(_built, TASK.to_json(), (TaskError,)),
    "record": Parser(_record, RECORD.to_json(), (RecordError,)),
    "negative record": Parser(_negative, json.dumps(NEGATIVE.to_fields()), (RecordError,)),
    "tool call": Parser(
        _tool_call, '{"source": "kernel.cu", "plan": "plan.json"}', (BadArguments,)
    ),
    "size": Parser(
        lambda t: evaluate(t, {"n": 32}), "ceildiv(n, 32) + max(1, -n % 7)", (ExpressionError,)
    ),
}
