"""Counts of instructions by kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_kit import ARCH, CUDA_ADD, cpu, cuda, needs_cuda_compiler

from sandbox.compile.candidate import Compiled, compile_candidate
from sandbox.compile.disassembly import count_instructions, count_sass, count_x86, find_disassembler
from sandbox.compile.toolchain import Missing

SASS = """
\t.section\t.text.scale,"ax",@progbits
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR6][R2.64] ;
        /*0020*/              @!P0 LDG.E.CONSTANT R0, desc[UR6][R2.64] ;
        /*0030*/                   LDG.E.U16 R0, desc[UR6][R2.64] ;
        /*0040*/             @UP1  STG.E.64 desc[UR4][R4.64], R2 ;
        /*0050*/                   STL.128 [R1], R4 ;
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0080*/                   NOP;
.L_x_4:
\t.section\t.nv.info,"",@"SHT_CUDA_INFO"
\t.section\t.text.copy,"ax",@progbits
        /*0000*/                   RED.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R5 ;
"""
X86 = """
0000000000001040 <f._omp_fn.0>:
    1040:\tvmovups (%rsi,%rax,1),%zmm0
    1046:\tvmulps %ymm1,%ymm0,%ymm0
    104c:\tvfmadd213ss %xmm3,%xmm2,%xmm1
    1050:\tcall   1030 <expf@plt>
    1055:\tcall   *%rax
    1057:\tadd    $0x40,%rax
"""


def test_sass_is_counted_by_kernel_kind_and_width() -> None:
    assert count_sass(SASS) == {
        "scale": {
            "instructions": 8,
            "global loads, 128 bits": 1,
            "global loads, 32 bits": 1,
            "global loads, 16 bits": 1,
            "global stores, 64 bits": 1,
            "local stores, 128 bits": 1,
            "block barriers": 1,
            "tensor core products": 1,
        },
        "copy": {"instructions": 1, "global atomics": 1},
    }


def test_x86_is_counted_by_vector_width_and_call() -> None:
    assert count_x86(X86) == {
        "instructions": 6,
        "vectors of 512 bits": 1,
        "vectors of 256 bits": 1,
        "scalar floating point": 1,
        "calls of expf": 1,
        "indirect calls": 1,
    }


def test_a_library_is_disassembled(tmp_path: Path) -> None:
    if isinstance(find_disassembler("cpu"), Missing):
        pytest.skip("no objdump on this machine")
    made = compile_candidate(cpu(), tmp_path, "native")
    assert isinstance(made, Compiled)
    found = count_instructions(made.path, "cpu")
    assert not isinstance(found, Missing), found
    assert found["code"]["instructions"] > 0


@needs_cuda_compiler
def test_a_cubin_is_disassembled(tmp_path: Path) -> None:
    if isinstance(find_disassembler("cuda"), Missing):
        pytest.skip("no nvdisasm on this machine")
    made = compile_candidate(cuda(CUDA_ADD), tmp_path, ARCH)
    assert isinstance(made, Compiled)
    found = count_instructions(made.path, "cuda")
    assert not isinstance(found, Missing), found
    assert found["add"]["global stores, 32 bits"] == 1


def test_a_broken_binary_is_a_value(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"not machine code")
    found = count_instructions(tmp_path / "broken", "cpu")
    assert isinstance(found, Missing)
    assert found.reason
