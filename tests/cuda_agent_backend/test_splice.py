"""Splicing, end to end through Inductor, with kernels written by hand.

The kernels compute something else than the region (they add 1000), so that it shows that they ran.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.graph.canonical import Canonical
from cuda_agent_backend.hook.kernel_pass import KernelPass
from cuda_agent_backend.partition.region import Region
from cuda_agent_backend.partition.splice import Replacement, splice
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.kernels import Hit, Kernels, NoKernel
from sandbox.launcher import define_ops
from sandbox.task.specs import TensorSpec
from sandbox.task.task import InputRef, Task

MARK = 1000.0


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No torch caches, and no kernel caches but the test's own."""
    monkeypatch.setattr(kernels, "_open", {})
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def forms_of(function: Callable[..., Any], inputs: Any, folder: Path) -> list[Any]:
    """The canonical forms of a function's regions, by capturing its graphs without generating code."""
    from cuda_agent_backend.tools.capture import capture
    from cuda_agent_backend.tools.record_inputs import canonical_forms

    found = capture(function, inputs, kit.options_in(folder))
    return [form for graph in found for form in canonical_forms(graph.module.graph)]


def spliced(
    function: Callable[..., Any], inputs: Any, folder: Path, expression: str
) -> tuple[Any, KernelPass]:
    """Promote the expression, plus the mark, for the function's only region; the compiled result, and the pass."""
    (form,) = forms_of(function, inputs, folder)
    options = kit.options_in(folder)
    body = kit.elementwise(form.task, f"{expression} + {MARK}f")
    kit.promote(kit.cache_of(options), form.task, body, folder)
    backend = kit.backend_for(options)
    with torch.no_grad():
        result = torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return result, backend.passes[0]


LAYOUTS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Tensor, ...], str]]] = {
    "contiguous": lambda: (lambda x: x.exp(), (torch.randn(6, 8),), "std::exp(a)"),
    "transposed input": lambda: (lambda x: x.exp(), (torch.randn(8, 6).t(),), "std::exp(a)"),
    "channels last": lambda: (
        lambda x: x.exp(),
        (torch.randn(2, 4, 3, 5).contiguous(memory_format=torch.channels_last),),
        "std::exp(a)",
    ),
    "sliced input": lambda: (lambda x: x[:, 1:7:2].exp(), (torch.randn(6, 8),), "std::exp(a)"),
    "expanded input": lambda: (
        lambda x, y: x + y.expand(6, 8),
        (torch.randn(6, 8), torch.randn(6, 1)),
        "a + b",
    ),
    "input of size one": lambda: (lambda x: x.exp(), (torch.randn(1, 8)[:, :4],), "std::exp(a)"),
    "transposed inside": lambda: (
        lambda x, w: (x @ w).t().exp(),
        (torch.randn(6, 8), torch.randn(8, 4)),
        "std::exp(a)",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_strides_are_right_in_every_layout(layout: str, tmp_path: Path) -> None:
    function, inputs, expression = LAYOUTS[layout]()
    result, hook = spliced(function, inputs, tmp_path, expression)
    expected = function(*inputs)
    assert hook.reports[0].count("hit") == 1
    torch.testing.assert_close(result, expected + MARK)
    assert result.stride() == expected.stride()


def test_a_kernel_stays_where_torch_makes_no_lowerings_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import lowering

    define_ops()
    monkeypatch.delitem(lowering.lowerings, torch.ops.cuda_agent.run_1_1.default, raising=False)
    function, inputs, expression = LAYOUTS["transposed inside"]()
    with torch._inductor.config.patch(implicit_fallbacks=False):
        result, hook = spliced(function, inputs, tmp_path, expression)
    expected = function(*inputs)
    assert hook.reports[0].count("hit") == 1
    torch.testing.assert_close(result, expected + MARK)
    assert result.stride() == expected.stride()


def test_two_outputs_and_users_before_the_last_node_are_rewired(tmp_path: Path) -> None:
    def two(x: Tensor, w: Tensor) -> Any:
        h = x.exp()
        early = h @ w
        return early, h.sum(-1)

    inputs = (torch.randn(6, 8), torch.randn(8, 4))
    (form,) = forms_of(two, inputs, tmp_path)
    full, rows = (0, 1) if form.task.output_specs[0].shape == (6, 8) else (1, 0)
    body = f"""
    for (long i = 0; i < 6; i++) {{
      float sum = 0;
      for (long j = 0; j < 8; j++) {{
        float v = std::exp(((const float*)buffers[0])[i * 8 + j]);
        ((float*)buffers[1 + {full}])[i * 8 + j] = v;
        sum += v;
      }}
      ((float*)buffers[1 + {rows}])[i] = sum + {MARK}f;
    }}"""
    options = kit.options_in(tmp_path)
    kit.promote(kit.cache_of(options), form.task, body, tmp_path)
    result = torch.compile(two, backend=kit.backend_for(options))(*inputs)
    expected = two(*inputs)
    torch.testing.assert_close(result[0], expected[0])
    torch.testing.assert_close(result[1], expected[1] + MARK)


def test_a_training_step_is_spliced_forward_and_backward(tmp_path: Path) -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (torch.sigmoid(x @ w) @ w).square().sum()

    def inputs() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    capture = kit.Capture()
    options = kit.options_in(tmp_path)
    torch.compile(loss, backend=kit.backend_for(options, capture))(*inputs()).backward()
    assert [report.kind for report in capture.reports] == ["forward", "backward"]
    sigmoid = next(f for f in capture.forms if len(f.task.inputs) == 1 and len(f.outputs) == 1)
    body = kit.elementwise(sigmoid.task, "1 / (1 + std::exp(-a))")
    kit.promote(kit.cache_of(options), sigmoid.task, body, tmp_path)
    torch._dynamo.reset()
    backend = kit.backend_for(options)
    ours, theirs = inputs(), inputs()
    torch.compile(loss, backend=backend)(*ours).backward()
    loss(*theirs).backward()
    assert sum(report.count("hit") for report in backend.passes[0].reports) >= 1
    for mine, eager in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, eager.grad)


def test_a_dropout_draws_the_numbers_that_it_draws_without_us(tmp_path: Path) -> None:
    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x.exp(), 0.25).tanh()

    inputs = (torch.randn(16, 32),)
    (form,) = forms_of(dropped, inputs, tmp_path)
    types = [spec.dtype for spec in form.task.inputs]
    assert sorted(types) == ["bool", "float32"]
    options = kit.options_in(tmp_path)
    body = f"""
    const float* x = (const float*)buffers[{types.index("float32")}];
    const bool* kept = (const bool*)buffers[{types.index("bool")}];
    for (long i = 0; i < 512; i++)
      ((float*)buffers[2])[i] = std::tanh(std::exp(x[i]) * kept[i] / 0.75f);"""
    kit.promote(kit.cache_of(options), form.task, body, tmp_path)
    backend = kit.backend_for(options)
    found = []
    for way in (backend, "inductor"):
        torch._dynamo.reset()
        torch.manual_seed(3)
        found.append(torch.compile(dropped, backend=way, fullgraph=True)(*inputs))
    assert backend.passes[0].reports[0].count("hit") == 1
    assert 0.1 < (found[0] == 0).float().mean() < 0.4
    torch.testing.assert_close(*found)


def test_equal_regions_share_one_kernel(tmp_path: Path) -> None:
    def twice(x: Tensor, w: Tensor) -> Tensor:
        return (x.exp() @ w).exp()

    inputs = (torch.randn(8, 8) / 8, torch.randn(8, 8) / 8)
    forms = forms_of(twice, inputs, tmp_path)
    assert len({form.task.digest for form in forms}) == 1
    options = kit.options_in(tmp_path)
    kit.promote(
        kit.cache_of(options),
        forms[0].task,
        kit.elementwise(forms[0].task, "std::exp(a)"),
        tmp_path,
    )
    backend = kit.backend_for(options)
    torch.testing.assert_close(torch.compile(twice, backend=backend)(*inputs), twice(*inputs))
    assert backend.passes[0].reports[0].count("hit") == 2


def chained() -> tuple[torch.fx.Graph, list[Replacement]]:
    """exp, then sin, each a region whose kernel takes the place of one node."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.ops.aten.exp.default, (x,))
    second = graph.call_function(torch.ops.aten.sin.default, (first,))
    graph.output(second)
    for node in (x, first, second):
        node.meta["val"] = torch.empty(3, device="meta")
    spec = TensorSpec("float32", (3,), (1,))
    some = Task("cpu", (spec,), (), (InputRef(0),), (spec,))
    made = [
        Replacement(
            Region((node,), (before,), (node,), "cpu", 0),
            Canonical(some, (before,), ((node,),)),
            key,
        )
        for key, (before, node) in enumerate(((x, first), (first, second)))
    ]
    return graph, made


@pytest.mark.parametrize("backwards", [False, True])
def test_a_kernel_behind_another_reads_that_ones_result(backwards: bool) -> None:
    define_ops()
    graph, replacements = chained()
    splice(graph, replacements[::-1] if backwards else replacements)
    x, first, second, output = graph.nodes
    assert (first.args, second.args, output.args) == ((0, x), (1, first), (second,))


@pytest.mark.parametrize("both", [False, True])
def test_a_copy_that_two_kernels_read_through_goes_with_the_last_of_them(both: bool) -> None:
    define_ops()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    copy = graph.call_function(torch.ops.aten.clone.default, (x,))
    products = [
        graph.call_function(op, (copy,)) for op in (torch.ops.aten.exp.default, torch.ops.aten.sin.default)
    ]  # fmt: skip
    graph.output(tuple(products))
    for node in (x, copy, *products):
        node.meta["val"] = torch.empty(3, device="meta")
    spec = TensorSpec("float32", (3,), (1,))
    some = Task("cpu", (spec,), (), (InputRef(0),), (spec,))
    made = [
        Replacement(
            Region((copy, node), (x,), (node,), "cpu", 0), Canonical(some, (x,), ((node,),)), key
        )
        for key, node in enumerate(products)
    ]
    splice(graph, made if both else made[:1])
    assert (copy in graph.nodes) is not both
    results = graph.output_node().args[0]
    assert isinstance(results, tuple)
    assert [node.args for node in results] == [(0, x), (1, x) if both else (copy,)]


def test_a_failing_splice_leaves_the_graph_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, inputs, expression = LAYOUTS["contiguous"]()
    (form,) = forms_of(function, inputs, tmp_path)
    options = kit.options_in(tmp_path)
    kit.promote(kit.cache_of(options), form.task, kit.elementwise(form.task, expression), tmp_path)
    from torch._inductor import pattern_matcher

    sort, calls = pattern_matcher.stable_topological_sort, []

    def broken_once(graph: torch.fx.Graph) -> None:
        calls.append(graph)
        if len(calls) == 1:
            raise RuntimeError("no order")
        sort(graph)

    monkeypatch.setattr(pattern_matcher, "stable_topological_sort", broken_once)
    result = torch.compile(function, backend=kit.backend_for(options))(*inputs)
    torch.testing.assert_close(result, function(*inputs))
    assert calls


def test_a_symbolic_graph_is_left_alone_with_the_reason(tmp_path: Path) -> None:
    backend = kit.backend_for(kit.options_in(tmp_path))
    x = torch.randn(6, 8)
    result = torch.compile(lambda x: x.exp().sum(-1), backend=backend, dynamic=True)(x)
    torch.testing.assert_close(result, x.exp().sum(-1))
    (region,) = backend.passes[0].reports[0].regions
    assert (region.status, region.reason) == ("left", "symbolic sizes")


def test_a_kernel_that_is_gone_at_run_time_is_a_clear_error(tmp_path: Path) -> None:
    from sandbox.launcher import UnknownKernelError, define_ops, op_for

    kit.cache_of(kit.options_in(tmp_path))
    define_ops()
    with pytest.raises((UnknownKernelError, RuntimeError), match="no kernel with key 12345"):
        op_for(1, 1)(12345, torch.randn(2))


def test_the_resolver_loads_what_cached_code_names(tmp_path: Path) -> None:
    from sandbox.launcher import is_bound, op_for, unbind

    function, inputs, expression = LAYOUTS["contiguous"]()
    (form,) = forms_of(function, inputs, tmp_path)
    cache = kit.cache_of(kit.options_in(tmp_path))
    record = kit.promote(cache, form.task, kit.elementwise(form.task, expression), tmp_path)
    unbind(record.key.op_key)
    assert not is_bound(record.key.op_key)
    torch.testing.assert_close(op_for(1, 1)(record.key.op_key, *inputs), inputs[0].exp())


def test_damage_in_the_cache_changes_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, inputs, expression = LAYOUTS["contiguous"]()
    (form,) = forms_of(function, inputs, tmp_path)
    cache = kit.cache_of(kit.options_in(tmp_path))
    record = kit.promote(cache, form.task, kit.elementwise(form.task, expression), tmp_path)
    before = Kernels(cache).fingerprint()
    path = cache.binary_path(record)
    assert isinstance(path, Path)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    monkeypatch.setattr(kernels, "_damage_known", {})  # as in a new process
    assert Kernels(cache).fingerprint() != before


def test_a_policys_own_code_runs_only_where_the_user_consents(tmp_path: Path) -> None:
    function, inputs, expression = LAYOUTS["contiguous"]()
    (form,) = forms_of(function, inputs, tmp_path)
    cache = kit.cache_of(kit.options_in(tmp_path))
    record = kit.promote(cache, form.task, kit.elementwise(form.task, expression), tmp_path)
    binary = cache.binary_path(record)
    assert isinstance(binary, Path)
    cache.put(replace(record, origin="policy"), binary.read_bytes())
    found = Kernels(cache).find(record.key, consent=False)
    assert isinstance(found, NoKernel) and "allow_policy_cpp" in found.reason
    assert not found.searchable
    assert isinstance(Kernels(cache).find(record.key, consent=True), Hit)
