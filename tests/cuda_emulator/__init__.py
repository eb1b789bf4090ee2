"""CUDA kernels of our sketches on a machine without a GPU: compiled by g++, run thread by thread.

What it shows is that the arithmetic, the indices, the barriers and the copies are right, those between the blocks of a
cluster, or of a cooperative launch, included. What it cannot show: speed, races that depend on time, fences between
kinds of memory access, what the assembler makes of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from sandbox.launcher.library import run_call
from sandbox.plan.plan import Launch, LibraryCall, Plan, TensorMap
from sandbox.plan.steps import Argument

SOURCES = Path(__file__).parent
PREPARED = SOURCES.parents[1] / "build" / "emulator"
CXX = [
    "g++", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-w", "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",  # takes jumps from one stack to another for errors
]  # fmt: skip
OPTIMISED = "-Og"
"""Kernels: g++ takes more time for each than it runs. Less than this, and they run for longer than g++ saves."""
LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
"""Links in a third of the time that the default linker takes."""
MOST_KERNELS = 5000
"""Libraries that are kept from one run to the next: about 100 KB each."""
KERNELS = "kernels"
SPECIAL = "CA_SPECIAL1"
"""In sources whose kernels call functions of `special.h`."""
FUNCTION = re.compile(r"^(?:template <[^\n]*> )?CA_INLINE[^\n]*\{", re.MULTILINE)
KERNEL = re.compile(
    r'extern "C" __global__ void(?: __launch_bounds__\([^)]*\))?\s+(\w+)\(([^)]*)\)\s*\{'
)


class NotEmulated(Exception):
    """The kernel does something that is not emulated."""


def run(
    source: str, plan: Plan, inputs: Sequence[torch.Tensor], folder: Path
) -> list[torch.Tensor]:
    """The plan's outputs, CPU tensors. Outputs and temporaries are NaN, or all ones in integers, to begin with."""
    library = ctypes.CDLL(str(build(source, folder)))
    memory: dict[str, torch.Tensor] = {}
    given = iter(inputs)
    for buffer in plan.buffers:
        if buffer.kind == "input":
            memory[buffer.name] = next(given)
        else:
            size = buffer.spec.extent * buffer.spec.itemsize
            raw = torch.full((size,), 0xFF, dtype=torch.uint8)
            flat = raw.view(getattr(torch, buffer.spec.dtype))
            memory[buffer.name] = flat.as_strided(buffer.spec.shape, buffer.spec.stride)
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            run_call(step, plan, [memory[b.name].data_ptr() for b in plan.buffers])
            continue
        assert isinstance(step, Launch)
        _launch(library, step, memory)
    return [memory[b.name] for b in plan.buffers if b.kind == "output"]


def _launch(library: ctypes.CDLL, step: Launch, memory: dict[str, torch.Tensor]) -> None:
    words, described = [], []
    for argument in step.args:
        if isinstance(argument, TensorMap):
            described.append(_described(argument, memory[argument.buffer]))
            words.append(described[-1].data_ptr())
        else:
            words.append(_word(argument, memory))
    # the blocks that are there at the same time
    cluster = tuple(map(int, step.grid if step.cooperative else step.cluster or (1, 1, 1)))
    if cluster[1:] != (1, 1):
        raise NotEmulated(f"{cluster} blocks together")
    sizes = [(ctypes.c_uint * 3)(*map(int, x)) for x in (step.grid, step.block)]
    more = [ctypes.c_uint(n) for n in (cluster[0], step.cooperative, int(step.shared))]
    getattr(library, f"launch_{step.kernel}")(*sizes, *more, (ctypes.c_void_p * len(words))(*words))


def _described(given: TensorMap, buffer: torch.Tensor) -> torch.Tensor:
    """What `copy_box` of the header reads, aligned to 64 bytes."""
    item, rank = buffer.element_size(), len(given.shape)
    if rank == 5 and given.box[4] != 1:
        raise NotEmulated("boxes of five dimensions")
    words = torch.zeros(24, dtype=torch.int64)
    words = words[-words.data_ptr() % 64 // 8 :][:16]
    words[:2] = torch.tensor([buffer.data_ptr() + given.offset * item, 256 * rank + item])
    words[2:7] = torch.tensor([*given.shape, *[1] * (5 - rank)])
    words[7:11] = torch.tensor([*(n * item for n in given.stride), *[0] * (5 - rank)])
    words[11:15] = torch.tensor([*given.box, *[1] * (5 - rank)][:4])
    return words


def _word(argument: Argument, memory: dict[str, torch.Tensor]) -> int:
    """A pointer, or a whole number in its place."""
    if isinstance(argument, str):
        return memory[argument].data_ptr()
    if argument.type == "f32" or not isinstance(argument.value, int):
        raise NotEmulated("scalar arguments that are no whole numbers")
    return argument.value


def build(source: str, folder: Path) -> Path:
    """The source as a library with a function ``launch_NAME`` for each kernel, see `_glue`.

    It is made once for all tests that have the same kernel, in this run and in later ones. folder: where g++ works.
    """
    text = translate(source)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    ready = prepared()
    library = ready / KERNELS / f"{name}.so"
    with contextlib.suppress(FileNotFoundError):
        os.utime(library)  # what was in use lately is kept
        return library
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.cpp").write_text(text)
    given = ["-include", str(ready / "emulator.h"), f"{name}.cpp", str(ready / "emulator.o")]
    with tempfile.TemporaryDirectory(dir=library.parent) as made:
        output = Path(made) / library.name
        _compile([OPTIMISED, "-shared", "-s", *LINKER, *given, "-o", str(output)], folder)
        output.replace(library)  # another process may do the same
    return library


@functools.cache
def prepared() -> Path:
    """A folder with kernels, and with what they share: the header, read by g++ beforehand, and what runs them."""
    texts = [(SOURCES / name).read_text() for name in ("emulator.h", "emulator.cpp")]
    version = subprocess.run(
        [CXX[0], "-dumpfullversion"], capture_output=True, text=True, check=True
    )
    known = "\n".join([*texts, *CXX, OPTIMISED, *LINKER, version.stdout])
    ready = PREPARED / hashlib.sha256(known.encode()).hexdigest()[:16]
    if ready.exists():
        discard_oldest(ready / KERNELS, MOST_KERNELS)
        return ready
    PREPARED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PREPARED) as name:
        made = Path(name) / "made"
        (made / KERNELS).mkdir(parents=True)
        shutil.copy(SOURCES / "emulator.h", made)
        _compile([OPTIMISED, "-x", "c++-header", "emulator.h", "-o", "emulator.h.gch"], made)
        _compile(["-O2", "-c", str(SOURCES / "emulator.cpp"), "-o", "emulator.o"], made)
        with contextlib.suppress(OSError):  # another process was first
            made.rename(ready)
    return ready


def discard_oldest(folder: Path, most: int) -> None:
    """Remove the files that were used least lately, until ``most`` are left. A library in use stays as it is."""
    used: list[tuple[float, Path]] = []
    for path in folder.glob("*.so"):
        with contextlib.suppress(FileNotFoundError):  # another process removes some
            used.append((path.stat().st_mtime, path))
    for _, path in sorted(used)[: max(0, len(used) - most)]:
        path.unlink(missing_ok=True)


def _compile(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [*CXX, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


def translate(source: str) -> str:
    """C++ for g++: functions in PTX are left out, as the header has them, and kernels get functions to call."""
    text = _without_assembly(source)
    text = re.sub(r"#include <cuda_\w+\.h>", "", text)
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];",
        r"\1* const \2 = reinterpret_cast<\1*>(shared_memory);",
        text,
    )
    if SPECIAL in source:
        text = (SOURCES / "special.h").read_text() + text
    return text + "\n" + "\n".join(_glue(*found.groups()) for found in KERNEL.finditer(source))


def _without_assembly(source: str) -> str:
    kept, at = [], 0
    for found in FUNCTION.finditer(source):
        if found.start() < at:
            continue
        end = _closing(source, found.end() - 1)
        body = source[found.start() : end]
        if re.search(r"\b(asm|CA_WIDE_ASM)\b", body) and "__CUDA_ARCH__" not in body:
            kept.append(source[at : found.start()])
            at = end
    return "".join([*kept, source[at:]])


def _closing(text: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    raise ValueError("a function without an end")


def _glue(name: str, parameters: str) -> str:
    types = [p.replace("__restrict__", "").rsplit(None, 1)[0] for p in parameters.split(",")]
    arguments = ", ".join(_taken(ctype, f"words[{n}]") for n, ctype in enumerate(types))
    return (
        f'extern "C" __attribute__((visibility("default"))) void launch_{name}(\n'
        "  const unsigned* grid, const unsigned* block, unsigned cluster, unsigned cooperative, unsigned shared,\n"
        "  intptr_t* words) {\n"
        f"  emulator::launch(grid, block, cluster, cooperative, shared, [=] {{ {name}({arguments}); }});\n}}"
    )


def _taken(ctype: str, word: str) -> str:
    """A tensor map is copied from where the word points to."""
    return f"*(const ca::tensor_map*){word}" if "tensor_map" in ctype else f"({ctype}){word}"
