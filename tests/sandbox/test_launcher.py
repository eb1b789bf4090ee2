"""Running programs through the operators: the Python and the native implementation behave alike."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launch_kit import ADD, buffers, cpu, spec

from sandbox import launcher, operator_library
from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.toolchain import Missing
from sandbox.failures import passing_words
from sandbox.launcher import native, ops
from sandbox.launcher.program import LoadFailed, Program, encode, load_program, temporary_layout
from sandbox.plan.alignment import INPUT_ALIGNMENT
from sandbox.plan.candidate import Candidate
from sandbox.plan.plan import Buffer, Launch, Plan
from sandbox.task.specs import ITEM_SIZES, TensorSpec

KEY = 2**63 - 1
ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("binaries")


@pytest.fixture(params=["python", "native"])
def run(request: pytest.FixtureRequest, native_dir: Path) -> Iterator[Run]:
    """Calls the operator with KEY: `run(inputs..., outputs=m)`."""
    launcher.define_ops()
    if request.param == "native":
        found = launcher.ensure_native(native_dir)
        assert not isinstance(found, Missing), found.log

    def call(*inputs: torch.Tensor, outputs: int = 1) -> Any:
        if request.param == "python":
            return ops.run(KEY, *inputs)
        return launcher.op_for(len(inputs), outputs)(KEY, *inputs)

    yield call
    launcher.unbind(KEY)
    launcher.set_resolver(None)


def load(candidate: Candidate, folder: Path) -> Program:
    compiled = compile_candidate(candidate, folder, "native")
    assert isinstance(compiled, Compiled), compiled
    program = load_program(compiled.path, candidate.plan)
    assert isinstance(program, Program), program
    return program


def bind(candidate: Candidate, folder: Path) -> None:
    launcher.bind(KEY, load(candidate, folder))


def test_it_adds(run: Run, binaries: Path) -> None:
    bind(cpu(), binaries)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    assert torch.equal(run(x, y), x + y)


def test_an_input_with_other_strides_is_copied_and_never_misread(run: Run, binaries: Path) -> None:
    bind(cpu(), binaries)
    x, y = torch.randn(8, 4).t(), torch.randn(8, 16)[::2, ::2]
    assert torch.equal(run(x, y), x + y)
    assert torch.equal(run(torch.randn(1, 8).expand(4, 8) * 0, y), y)
    assert torch.equal(run(torch.ones(8).expand(4, 8), y), y + 1)


def test_a_lazily_negated_input_is_read_as_what_it_stands_for(
    binaries: Path, native_dir: Path
) -> None:
    launcher.ensure_native(native_dir)
    bind(cpu(), binaries)
    x, y = torch._neg_view(torch.randn(4, 8)), torch.randn(4, 8)
    assert torch.equal(launcher.op_for(2, 1)(KEY, x, y), x + y)
    launcher.unbind(KEY)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda x: x.double(), "dtype|float64"),
        (lambda x: x[:2], "shape|2, 8"),
        (lambda x: x.expand(2, 4, 8), "2, 4, 8"),
    ],
    ids=["dtype", "size", "dimensions"],
)
def test_inputs_that_do_not_fit_are_errors(
    run: Run, binaries: Path, change: Callable[[torch.Tensor], torch.Tensor], complaint: str
) -> None:
    bind(cpu(), binaries)
    x = torch.randn(4, 8)
    with pytest.raises(RuntimeError, match=complaint):
        run(x, change(x))


def test_a_wrong_number_of_inputs_is_an_error(run: Run, binaries: Path) -> None:
    bind(cpu(), binaries)
    with pytest.raises(RuntimeError, match="inputs"):
        run(torch.randn(4, 8))


def test_an_overlapping_input_layout_is_used_but_never_made(run: Run, binaries: Path) -> None:
    source = """extern "C" void add(void* const* b) {
      for (int i = 0; i < 32; ++i) ((float*)b[1])[i] = ((const float*)b[0])[i % 8]; }"""
    row = Buffer("x", "input", TensorSpec("float32", (4, 8), (0, 1)))
    bind(
        cpu(source, Plan("cpu", (row, Buffer("o", "output", spec(4, 8))), (Launch("add"),))),
        binaries,
    )
    x = torch.randn(8).expand(4, 8)
    assert torch.equal(run(x), x)
    with pytest.raises(RuntimeError, match="overlapping"):
        run(torch.randn(4, 8))


def test_an_overlapping_input_at_an_odd_address_is_moved(
    run: Run, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(INPUT_ALIGNMENT, "cpu", 16)  # as on cuda, where vectors are read
    source = """extern "C" void add(void* const* b) {
      const bool odd = (unsigned long long)b[0] % 16;
      for (int i = 0; i < 6; ++i) for (int j = 0; j < 4; ++j)
        ((float*)b[1])[i * 4 + j] = odd ? -1.0f : ((const float*)b[0])[i + j]; }"""
    windows = Buffer("x", "input", TensorSpec("float32", (6, 4), (1, 1)))
    bind(
        cpu(source, Plan("cpu", (windows, Buffer("o", "output", spec(6, 4))), (Launch("add"),))),
        binaries,
    )
    line = torch.randn(16)
    for start in range(4):
        x = line[start : start + 9].unfold(0, 4, 1)
        assert torch.equal(run(x), x)


def test_outputs_and_temporaries_are_as_the_plan_says(run: Run, binaries: Path) -> None:
    source = """extern "C" void two(void* const* b) {
      const float* x = (const float*)b[0]; float* s = (float*)b[1]; long long* d = (long long*)b[2];
      float* t = (float*)b[3]; char* u = (char*)b[4];
      for (int i = 0; i < 5; ++i) u[i] = 7;
      for (int i = 0; i < 32; ++i) t[i] = x[i];
      for (int i = 0; i < 8; ++i) for (int j = 0; j < 4; ++j) s[i * 4 + j] = t[j * 8 + i] * 2;
      d[0] = u[0] + ((long long)u % 16); }"""
    plan = Plan(
        "cpu",
        (
            Buffer("x", "input", spec(4, 8)),
            Buffer("s", "output", TensorSpec("float32", (4, 8), (1, 4))),
            Buffer("d", "output", spec(dtype="int64")),
            Buffer("t", "temporary", spec(32)),
            Buffer("u", "temporary", spec(5, dtype="uint8")),
        ),
        (Launch("two"),),
    )
    assert temporary_layout(plan) == ((0, 256), 512)
    bind(cpu(source, plan, "two"), binaries)
    x = torch.randn(4, 8)
    doubled, seven = run(x, outputs=2)
    assert torch.equal(doubled, 2 * x) and doubled.stride() == (1, 4)
    assert seven.dtype == torch.int64 and seven.shape == () and seven.item() == 7


def test_calls_at_the_same_time_have_temporaries_of_their_own(run: Run, binaries: Path) -> None:
    source = """#include <unistd.h>
    extern "C" void slow(void* const* b) {
      const float* x = (const float*)b[0]; float* o = (float*)b[1]; float* t = (float*)b[2];
      for (int i = 0; i < 32; ++i) t[i] = x[i];
      usleep(2000);
      for (int i = 0; i < 32; ++i) o[i] = t[i]; }"""
    temporary = Buffer("t", "temporary", spec(32))
    plan = Plan("cpu", (*buffers(1, (4, 8)), temporary), (Launch("slow"),))
    bind(cpu(source, plan, "slow"), binaries)

    def same(number: int) -> bool:
        x = torch.full((4, 8), float(number))
        return bool(torch.equal(run(x), x))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, range(40)))


@pytest.mark.parametrize("dtype", list(ITEM_SIZES))
def test_every_dtype_has_the_same_code_on_both_sides(run: Run, binaries: Path, dtype: str) -> None:
    source = """#include <cstring>
      extern "C" void copy(void* const* b) { std::memcpy(b[1], b[0], SIZE); }"""
    plan = Plan(
        "cpu",
        (Buffer("x", "input", spec(6, dtype=dtype)), Buffer("o", "output", spec(6, dtype=dtype))),
        (Launch("copy"),),
    )
    size = 6 * ITEM_SIZES[dtype]
    bind(cpu(source.replace("SIZE", str(size)), plan, "copy"), binaries)
    x = torch.arange(6).to(getattr(torch, dtype))
    result = run(x)
    assert result.dtype == x.dtype
    assert torch.equal(result.view(torch.uint8), x.view(torch.uint8))


def test_empty_and_scalar_tensors_pass(run: Run, binaries: Path) -> None:
    source = 'extern "C" void nothing(void* const* b) { *(float*)b[2] = *(const float*)b[1]; }'
    plan = Plan(
        "cpu",
        (
            Buffer("e", "input", spec(0, 3)),
            Buffer("s", "input", spec()),
            Buffer("o", "output", spec()),
        ),
        (Launch("nothing"),),
    )
    bind(cpu(source, plan, "nothing"), binaries)
    assert run(torch.empty(0, 3), torch.tensor(3.0)).item() == 3
    assert run(torch.empty(3, 0).t(), torch.tensor(4.0)).item() == 4


def test_rebinding_a_key_changes_what_runs(run: Run, binaries: Path) -> None:
    x = torch.randn(4, 8)
    bind(cpu(), binaries)
    assert torch.equal(run(x, x), x + x)
    bind(cpu(ADD.replace("x[i] + y[i]", "x[i] - y[i]")), binaries)
    assert torch.equal(run(x, x), x - x)
    launcher.unbind(KEY)
    launcher.unbind(KEY)
    assert not launcher.is_bound(KEY)
    with pytest.raises(RuntimeError, match=f"no kernel with key {KEY}"):
        run(x, x)


def test_an_unknown_key_is_resolved_once(run: Run, binaries: Path) -> None:
    program = load(cpu(), binaries)
    asked: list[int] = []

    def resolver(key: int) -> bool:
        asked.append(key)
        launcher.bind(key, program)
        return True

    launcher.set_resolver(resolver)
    x = torch.randn(4, 8)
    for _ in range(3):
        assert torch.equal(run(x, x), x + x)
    assert asked == [KEY]


def test_memory_that_is_not_to_be_had_is_no_fault_of_the_kernel(run: Run, binaries: Path) -> None:
    """Together more than a process has addresses for, so that no machine lends it."""
    plan = cpu().plan
    large = (Buffer(f"t{n}", "temporary", spec(1 << 40, dtype="int64")) for n in range(20))
    bind(cpu(plan=replace(plan, buffers=(*plan.buffers, *large))), binaries)
    with pytest.raises(RuntimeError) as raised:
        run(torch.randn(4, 8), torch.randn(4, 8))
    assert passing_words(str(raised.value)), raised.value


@pytest.mark.parametrize("answer", [False, True, ZeroDivisionError()])
def test_a_resolver_that_cannot_help_leaves_a_clear_error(run: Run, answer: object) -> None:
    def resolver(key: int) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    launcher.set_resolver(resolver)
    with pytest.raises(RuntimeError, match=r"torch\._dynamo\.reset"):
        run(torch.randn(4, 8))


def test_many_threads_may_call_while_keys_are_rebound(run: Run, binaries: Path) -> None:
    programs = [load(cpu(ADD.replace("#pragma", "//") + f"// {i}"), binaries) for i in range(2)]
    launcher.bind(KEY, programs[0])
    stop = threading.Event()

    def rebind() -> None:
        while not stop.is_set():
            for program in programs:
                launcher.bind(KEY, program)

    def call(_: int) -> bool:
        x = torch.randn(4, 8)
        return all(torch.equal(run(x, x), x + x) for _ in range(200))

    thread = threading.Thread(target=rebind)
    thread.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(call, range(4)))
    finally:
        stop.set()
        thread.join()


def test_fake_tensors_get_the_plans_shapes_and_strides(run: Run, binaries: Path) -> None:
    from torch._subclasses import FakeTensorMode

    plan = Plan(
        "cpu",
        (*buffers(1, (4, 8)), Buffer("t", "output", TensorSpec("float16", (3, 2), (1, 3)))),
        (Launch("add"),),
    )
    bind(cpu('extern "C" void add(void* const*) {}', plan), binaries)
    with FakeTensorMode() as mode:
        first, second = launcher.op_for(1, 2)(KEY, mode.from_tensor(torch.randn(4, 8)))
    assert (first.shape, first.stride(), first.dtype) == ((4, 8), (8, 1), torch.float32)
    assert (second.shape, second.stride(), second.dtype) == ((3, 2), (1, 3), torch.float16)


@pytest.mark.slow
def test_inductor_compiles_a_graph_with_the_operator(run: Run, binaries: Path) -> None:
    bind(cpu(), binaries)

    @torch.compile(fullgraph=True)
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return launcher.op_for(2, 1)(KEY, x, y.t().contiguous().t() * 2).relu()  # type: ignore[no-any-return]

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    torch.testing.assert_close(model(x, y), (x + 2 * y).relu())


def test_there_is_an_operator_for_every_arity_and_only_those() -> None:
    launcher.define_ops()
    launcher.define_ops()
    for inputs in range(1, 33):
        for outputs in range(1, 9):
            schema = launcher.op_for(inputs, outputs)._schema
            assert (len(schema.arguments), len(schema.returns)) == (inputs + 1, outputs)
    for inputs, outputs in ((0, 1), (33, 1), (1, 0), (1, 9)):
        with pytest.raises(ValueError, match="no operator"):
            launcher.op_for(inputs, outputs)


@pytest.mark.parametrize("key", [-1, 2**63])
def test_keys_are_63_bit_integers(key: int, binaries: Path) -> None:
    with pytest.raises(ValueError, match="63-bit"):
        launcher.bind(key, load(cpu(), binaries))


def test_what_cannot_be_loaded_is_a_value(tmp_path: Path, binaries: Path) -> None:
    plan = cpu().plan
    assert isinstance(load_program(tmp_path / "absent.so", plan), LoadFailed)
    (tmp_path / "text.so").write_text("not a library")
    assert isinstance(load_program(tmp_path / "text.so", plan), LoadFailed)
    other = load_program(load(cpu(), binaries).path, replace(plan, steps=(Launch("other"),)))
    assert isinstance(other, LoadFailed) and "other" in other.reason
    extra = replace(plan, buffers=(*plan.buffers, Buffer("w", "prepacked", spec(3))))
    assert isinstance(load_program(tmp_path, extra), LoadFailed)


def test_the_binding_words_are_those_the_operator_library_reads(native_dir: Path) -> None:
    found = launcher.ensure_native(native_dir)
    assert not isinstance(found, Missing), found
    words = encode(cpu().plan)
    library = ctypes.CDLL(str(found.path))
    for cut in range(len(words)):
        array = (ctypes.c_int64 * cut)(*words[:cut])
        arguments = (ctypes.c_int64(1), None, None, array, ctypes.c_int64(cut))
        assert library.ca_op_bind(*arguments) == 1


def test_the_library_is_built_once_and_then_found(native_dir: Path, tmp_path: Path) -> None:
    assert launcher.ensure_native(native_dir) == launcher.ensure_native(tmp_path)
    assert not list(tmp_path.glob("op-*"))
    found = native.find_or_build(native_dir)
    assert not isinstance(found, Missing) and not found.built


def test_two_builders_at_once_leave_one_whole_library(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(native.find_or_build, [tmp_path] * 2)
    assert not isinstance(first, Missing) and not isinstance(second, Missing)
    assert first.path == second.path and first.path.is_file()
    assert [p.name for p in tmp_path.iterdir()] == [first.path.name]


def test_a_failed_build_is_a_value_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "abi.h").write_text("")
    for name in ("library.h", "library.cpp"):
        (sources / name).write_text("")
    (sources / "op.cpp").write_text("no C++ at all")
    monkeypatch.setattr(native, "SOURCES", sources)
    found = native.find_or_build(tmp_path / "cache")
    assert isinstance(found, Missing) and "error" in found.log
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_folder_that_cannot_be_written_is_a_value(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = native.find_or_build(tmp_path / "file")
    assert isinstance(found, Missing) and "writable" in found.remedy


def test_importing_registers_nothing() -> None:
    code = (
        "import sandbox.launcher, torch\n"
        "names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith('cuda_agent')]\n"
        "assert not names, names"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_what_stands_in_for_a_kernel_runs_where_it_is_not_to_be_had(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, x - y

    monkeypatch.setattr(operator_library, "stand_ins", {KEY: both}.get)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    for _ in range(3):  # what it is given and gives has one owner each
        assert all(map(torch.equal, run(x, y, outputs=2), both(x, y)))
    assert torch._C._storage_Use_Count(x.untyped_storage()._cdata) == 2


@pytest.mark.parametrize("known", [False, True])
def test_where_nothing_can_stand_in_for_a_kernel_it_is_an_error(
    known: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("it failed")

    monkeypatch.setattr(operator_library, "stand_ins", {KEY: fails}.get if known else None)
    with pytest.raises(RuntimeError, match="failed" if known else "no kernel with key"):
        run(torch.randn(4, 8))
