"""What a candidate's machine code consists of: counts by kind, for whoever wants to make it faster.

Feedback only: no verdict rests on it. The disassembler (nvdisasm of the CUDA toolkit or of its wheel, objdump of
binutils) reads untrusted bytes, so it is confined as compilers are.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sandbox import scratch
from sandbox.compile.toolchain import Missing, find_cuda_tool
from sandbox.isolation.confine import offered, policy
from sandbox.isolation.limits import Finished, Limits, run_limited
from sandbox.isolation.privileges import next_uid
from sandbox.isolation.views import compiler_view

LIMITS = Limits(wall_s=30.0, cpu_s=60)
TEXT_LIMIT = 1 << 26
"""Characters of a listing; of a longer one the counts would be of a part."""

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Inspection:
    """What is known of a candidate's machine code without running it.

    kernels: registers, spills, shared memory and residency of each (cuda). instructions: see
    `count_instructions`; empty where `why_not` says why.
    """

    kernels: Mapping[str, Mapping[str, int | float | str]]
    instructions: Counts
    why_not: str = ""


REMEDIES = {
    "cpu": Missing("no objdump", "install binutils"),
    "cuda": Missing("no nvdisasm", "install the CUDA toolkit, or the package nvidia-cuda-nvdisasm"),
}


@lru_cache
def find_disassembler(target: str) -> Path | Missing:
    """nvdisasm for cuda, objdump for cpu. Looked up once per process."""
    if target == "cuda":
        return find_cuda_tool("nvdisasm") or REMEDIES[target]
    path = shutil.which("objdump")
    return Path(path) if path else REMEDIES[target]


def count_instructions(binary: Path, target: str) -> Counts | Missing:
    """Instructions of a cubin by kernel, or of a shared object as a whole (under "code"), counted by kind."""
    tool = find_disassembler(target)
    if isinstance(tool, Missing):
        return tool
    with scratch.folder("disassembling") as name:
        folder = Path(name)
        shutil.copyfile(binary, folder / "binary")
        listing = folder / "listing"
        # The listing goes to a file: what a limited command prints is cut in the middle.
        flags = "-c" if target == "cuda" else "-d -j .text --no-show-raw-insn"
        argv = ["/bin/sh", "-c", f'exec "$0" {flags} binary > listing', str(tool)]
        wanted = policy(offered(), compiler_view(folder, [tool]), {}, next_uid([str(tool)]))
        done = run_limited(argv, folder, LIMITS, policy=wanted)
        if not isinstance(done, Finished) or done.code != 0:
            return Missing(f"{tool.name} failed on it", "", getattr(done, "output", ""))
        with listing.open(errors="replace") as file:
            text = file.read(TEXT_LIMIT)
    return count_sass(text) if target == "cuda" else {"code": count_x86(text)}


_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)", re.MULTILINE)
_SASS = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_WIDTH = re.compile(r"\.(8|16|32|64|128)\b|\.[US](8|16)\b")

_SASS_KINDS = {
    "LDG": "global loads",
    "STG": "global stores",
    "LDL": "local loads",
    "STL": "local stores",
    "LDS": "shared loads",
    "LDSM": "shared loads",
    "STS": "shared stores",
    "STSM": "shared stores",
    "LD": "generic loads",
    "ST": "generic stores",
    "ATOM": "global atomics",
    "ATOMG": "global atomics",
    "RED": "global atomics",
    "REDG": "global atomics",
    "ATOMS": "shared atomics",
    "BAR": "block barriers",
    "SHFL": "shuffles",
    "MUFU": "special functions",
    "LDGSTS": "asynchronous copies",
    "UBLKCP": "asynchronous copies",
    "UTMALDG": "asynchronous copies",
    "UTMASTG": "asynchronous copies",
    "HMMA": "tensor core products",
    "HGMMA": "tensor core products",
    "QGMMA": "tensor core products",
    "IMMA": "tensor core products",
    "DMMA": "tensor core products",
    "BRX": "indirect branches",
    "CALL": "calls",
}
_WITH_WIDTH = ("global loads", "global stores", "local loads", "local stores", "generic loads")


def count_sass(listing: str) -> Counts:
    """Of nvdisasm's listing. Memory accesses are told apart by bits a thread: `global loads, 128 bits`."""
    parts = _SECTION.split(listing)
    return {
        kernel: dict(Counter(_sass_kinds(body)))
        for kernel, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def _sass_kinds(body: str) -> Iterator[str]:
    for match in _SASS.finditer(body):
        name, _, suffixes = match.group(1).partition(".")
        if name == "NOP":
            continue
        yield "instructions"
        kind = _SASS_KINDS.get(name)
        if kind in _WITH_WIDTH:
            width = _WIDTH.search(f".{suffixes}")
            bits = next(filter(None, width.groups()), "32") if width else "32"
            yield f"{kind}, {bits} bits"
        elif kind is not None:
            yield kind


_X86 = re.compile(r"^\s*[0-9a-f]+:\s+(\S+)[ \t]*(.*)$", re.MULTILINE)
_REGISTER_BITS = {"z": 512, "y": 256, "x": 128}
_VECTOR = re.compile(r"%([xyz])mm\d+")
_SCALAR = re.compile(r"v?\w+s[sdh]$")
_START_UP = ("__cxa_finalize", "register_tm_clones")
"""What every shared object calls when it is loaded and unloaded."""


def count_x86(listing: str) -> dict[str, int]:
    """Of objdump's listing, AT&T form: arithmetic by vector width, scalar floating point, calls by name."""
    found: Counter[str] = Counter()
    for match in _X86.finditer(listing):
        name, operands = match.groups()
        found["instructions"] += 1
        register = _VECTOR.search(operands)
        if name.startswith("call"):
            called = re.search(r"<([^@>+]+)", operands)
            if called is None or not called.group(1).endswith(_START_UP):
                found[f"calls of {called.group(1)}" if called else "indirect calls"] += 1
        elif register and _SCALAR.fullmatch(name) and "cvt" not in name:
            found["scalar floating point"] += 1
        elif register:
            widest = max(_REGISTER_BITS[letter] for letter in _VECTOR.findall(operands))
            found[f"vectors of {widest} bits"] += 1
    return dict(found)
