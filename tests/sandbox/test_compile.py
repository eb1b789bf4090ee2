"""Compiling candidates for both targets: what comes out, and how each failure is told."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launch_kit import ARCH, CUDA_ADD, cpu, cuda, cuda_plan, needs_cuda_compiler

from sandbox.compile import toolchain
from sandbox.compile.candidate import (
    Compiled,
    CompileFailed,
    CompileTimedOut,
    Refused,
    compile_candidate,
)
from sandbox.compile.cubin import may_name_math_tables, parse
from sandbox.compile.cuda import compile_cuda, ptxas_facts
from sandbox.compile.elf import ElfError
from sandbox.compile.toolchain import (
    Missing,
    Toolchain,
    _told_version,
    find_cuda,
    find_cxx,
    find_nvrtc,
)
from sandbox.failures import TimedOut
from sandbox.isolation.limits import Limits
from sandbox.judge.builds import Builds
from sandbox.judge.settings import JudgeSettings
from sandbox.plan.candidate import Candidate, Origin
from sandbox.plan.plan import Launch


def test_cpp_becomes_a_shared_object(tmp_path: Path) -> None:
    result = compile_candidate(cpu(), tmp_path, "native")
    assert isinstance(result, Compiled)
    assert result.path.suffix == ".so" and result.path.parent == tmp_path
    assert "g++" in result.toolchain.version or "clang" in result.toolchain.version
    assert [p.name for p in tmp_path.iterdir()] == [result.path.name]


def test_a_syntax_error_comes_back_with_the_compilers_words(tmp_path: Path) -> None:
    result = compile_candidate(cpu("this is no C++"), tmp_path, "native")
    assert isinstance(result, CompileFailed)
    assert "error" in result.log
    assert not list(tmp_path.iterdir())


ENDLESS = "#define A0 ;\n" + "".join(f"#define A{n + 1} A{n} A{n}\n" for n in range(34)) + "A34\n"


def test_an_endless_compilation_is_stopped(tmp_path: Path) -> None:
    result = compile_candidate(cpu(ENDLESS), tmp_path, "native", timeout_s=0.3)
    assert isinstance(result, CompileTimedOut)
    assert not list(tmp_path.iterdir())


def test_compilers_that_run_are_interrupted_and_later_ones_are_not(tmp_path: Path) -> None:
    builds = Builds(JudgeSettings("cpu", scratch_dir=tmp_path))

    def once_it_compiles() -> None:
        while not list(tmp_path.glob("candidates/compiling-*")):
            time.sleep(0.05)
        builds.interrupt()

    threading.Thread(target=once_it_compiles, daemon=True).start()
    began = time.monotonic()
    assert isinstance(builds.compile(cpu(ENDLESS)), TimedOut)
    assert time.monotonic() - began < JudgeSettings("cpu", scratch_dir="").timeouts.compile / 2
    assert isinstance(builds.compile(cpu()), Compiled)


def test_a_policys_cpp_needs_the_users_consent(tmp_path: Path) -> None:
    candidate = cpu(origin="policy")
    refused = compile_candidate(candidate, tmp_path, "native")
    assert isinstance(refused, Refused) and "consent" in refused.reason
    assert isinstance(compile_candidate(candidate, tmp_path, "native", consent=True), Compiled)


def test_language_target_and_plan_must_agree(tmp_path: Path) -> None:
    for wrong in (replace(cpu(), language="cuda"), replace(cpu(), plan=cuda_plan())):
        assert isinstance(compile_candidate(wrong, tmp_path, "native"), Refused)


def test_an_unwritable_folder_is_a_value(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert isinstance(compile_candidate(cpu(), blocked / "sub", "native"), CompileFailed)


def test_no_compiler_is_a_value_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    result = compile_candidate(cpu(), tmp_path, "native")
    assert isinstance(result, CompileFailed) and "install g++" in result.log


def test_a_compiler_that_fails_once_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nkill -9 $$\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(find_cxx(), Missing)
    compiler.write_text("#!/bin/sh\necho 'g++ 12.2'\n")
    assert isinstance(find_cxx(), Missing), "it is not asked each time"
    toolchain._failed_at[str(compiler)] -= toolchain.AGAIN_S
    found = find_cxx()
    assert isinstance(found, Toolchain) and found.version == "g++ 12.2"


def test_compilers_are_found_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a user's compilations asks for their versions, on full disks too."""
    expected = find_cxx(), find_cuda()
    _told_version.cache_clear()
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(file / "below"))
    assert (find_cxx(), find_cuda()) == expected


def cuda_result(source: str, folder: Path, origin: str = "policy") -> object:
    candidate: Candidate = replace(cuda(source), origin=origin)
    return compile_candidate(candidate, folder, ARCH)


@needs_cuda_compiler
@pytest.mark.parametrize(("origin", "refused"), [("policy", True), ("sketch", False)])
def test_dependent_launches_are_for_generated_kernels(
    tmp_path: Path, origin: Origin, refused: bool
) -> None:
    (first,) = cuda().plan.steps
    assert isinstance(first, Launch)
    plan = replace(cuda().plan, steps=(first, replace(first, dependent=True)))
    result = compile_candidate(cuda(plan=plan, origin=origin), tmp_path, ARCH)
    assert isinstance(result, Refused if refused else Compiled), result
    assert not isinstance(result, Refused) or "dependent launches" in result.reason


def kernel(body: str, before: str = "") -> str:
    """A policy's source with a kernel `add` of the usual arguments."""
    head = (
        'extern "C" __global__ void add(const float* x, const float* y, float* o, int n, float s)'
    )
    return f"{before}\n{head} {{ {body} }}\n"


@needs_cuda_compiler
def test_cuda_becomes_a_cubin_with_facts_about_each_kernel(tmp_path: Path) -> None:
    result = cuda_result(CUDA_ADD, tmp_path)
    assert isinstance(result, Compiled), result
    assert parse(result.path.read_bytes()).kernels == {"add"}
    facts = result.facts["add"]
    assert facts["registers"] > 0
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert facts["blocks_per_sm"] > 0


@needs_cuda_compiler
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (kernel("state[0] += 1; o[0] = state[0];", "__device__ float state[4];"), "state"),
        (kernel("o[0] = t[n];", "__device__ const float t[3] = {1, 2, 3};"), "__constant__"),
        (kernel("static int calls; o[0] = calls++;"), "calls"),
        (
            kernel(
                "o[0] = atomicAdd(__nv_reserved_n + n, 1);", "__device__ int __nv_reserved_n[9];"
            ),
            "__nv_reserved_n",
        ),
        (
            kernel(
                'asm volatile("{.global .b32 __nv_reserved_g; st.global.u32 [__nv_reserved_g], %0;}" :: "r"(n));'
            ),
            "__nv_reserved_g",
        ),
        (kernel("o[0] = state;", "__device__ __managed__ float state;"), "state"),
        (kernel('asm volatile("{.global .b32 g; st.global.u32 [g], %0;}" :: "r"(n));'), "g"),
        (kernel("int* p = (int*)malloc(n); p[n - 1] = 1; o[0] = p[0];"), "allocates"),
        (kernel("int* p = new int[n]; p[n - 1] = 1; o[0] = p[0];"), "allocates"),
        (kernel('printf("%d", n);', "#include <cstdio>"), "prints"),
        (
            kernel(
                "o[0] = sinf(x[0]) + T(__cudart_, i2opi_f)[n];",
                "#define T(a, b) a##b\n__device__ float __cudart_other[3];",
            ),
            "",
        ),
        (kernel("o[0] = sinf(x[0]);", "#define T(a, b) a##b"), "macros"),
    ],
)
def test_state_and_device_runtime_calls_are_refused(
    tmp_path: Path, source: str, complaint: str
) -> None:
    result = cuda_result(source, tmp_path)
    if not complaint:
        assert isinstance(result, Refused | CompileFailed)
        return
    assert isinstance(result, Refused), result
    assert complaint in result.reason
    assert not list(tmp_path.iterdir())


@needs_cuda_compiler
def test_dynamic_parallelism_does_not_compile(tmp_path: Path) -> None:
    source = kernel("child<<<1, 1>>>(o);", "__global__ void child(float* o) { o[0] = 1; }")
    assert isinstance(cuda_result(source, tmp_path), CompileFailed)


@needs_cuda_compiler
@pytest.mark.parametrize(
    "source",
    [
        kernel("o[0] = t[n];", "__constant__ float t[3] = {1, 2, 3};"),
        kernel("const float t[4] = {1, 2, 3, 4}; o[0] = t[n & 3];"),
        kernel("o[0] = sinf(x[0]) + tanf(y[0]);"),
        kernel("__shared__ float t[64]; t[n] = x[n]; __syncthreads(); o[0] = t[63 - n];"),
        kernel("o[0] = __half2float(__float2half(x[0]));", "#include <cuda_fp16.h>"),
    ],
    ids=["constant", "local-table", "trigonometry", "shared", "half"],
)
def test_honest_kernels_are_not_refused(tmp_path: Path, source: str) -> None:
    assert isinstance(cuda_result(source, tmp_path), Compiled)


@needs_cuda_compiler
def test_host_code_is_not_run_and_a_missing_kernel_is_named(tmp_path: Path) -> None:
    result = cuda_result("__global__ void add(float* o) {}", tmp_path)
    assert isinstance(result, CompileFailed)
    assert 'extern "C"' in result.log and "add" in result.log


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC library on this machine")
def test_nvrtc_serves_where_there_is_no_nvcc(tmp_path: Path) -> None:
    toolchain = find_nvrtc()
    result = compile_cuda(cuda(), tmp_path, ARCH, Limits(wall_s=120), toolchain=toolchain)
    assert isinstance(result, Compiled), result
    assert result.facts["add"]["registers"] > 0
    wrong = cuda("int f( {")
    failed = compile_cuda(wrong, tmp_path, ARCH, Limits(wall_s=120), toolchain=toolchain)
    assert isinstance(failed, CompileFailed) and "error" in failed.log


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    result = compile_candidate(cuda(), tmp_path, "sm_90a -o /etc/passwd")
    assert isinstance(result, Refused)


def test_facts_are_read_from_the_assemblers_words() -> None:
    log = """ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes smem
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Used 12 registers
"""
    facts = ptxas_facts(log)
    assert facts["a"] == {
        "registers": 255,
        "stack_bytes": 16,
        "spill_store_bytes": 8,
        "spill_load_bytes": 4,
        "shared_bytes": 400,
    }
    assert facts["b"]["registers"] == 12 and facts["b"]["shared_bytes"] == 0
    assert ptxas_facts("") == {}


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF\x02\x01", b"MZ" * 100, b"\x7fELF\x02\x01" + b"\xff" * 200]
)
def test_what_is_no_cubin_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ElfError):
        parse(data)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("float f(float x) { return sinf(x); }", False),
        ("#define N 4\n#ifdef X\n#endif", False),
        ("__cudart_i2opi_f[0] = 1;", True),
        ('asm("st.u32 [__cud" \n "art_i2opi_f], 1;");', True),
        ("#define T(a, b) a##b", True),
        ("#define T(a, b) a \\\n ## b", True),
        ("%: define T(a, b) a %:%: b", True),
    ],
)
def test_hidden_names_of_math_tables_are_found(source: str, expected: bool) -> None:
    assert may_name_math_tables(source) is expected


def test_toolchains_say_their_version() -> None:
    for found in (find_cxx(), find_cuda()):
        if isinstance(found, Toolchain):
            assert any(character.isdigit() for character in found.version)
        else:
            assert found.remedy
