"""Build, load and keep the native operator library.

It is built once per torch version, compiler and source into a cache folder: made aside and renamed, so that any number
of processes may do so at once and none ever sees half a file.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion

from sandbox import operator_library, scratch
from sandbox.compile.toolchain import Missing, Toolchain, find_cxx
from sandbox.isolation.limits import Finished, Limits, StartFailed, TimedOut, run_limited
from sandbox.launcher import ops, registry
from sandbox.launcher.program import Program, encode

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
COMPILED = {"op.cpp": "-O2", "library.cpp": "-O1"}
"""Sources, and how well each is optimised: what the second does takes longer than its own code."""
STANDARD = "c++20" if TorchVersion(torch.__version__) >= "2.14.dev0" else "c++17"
"""What torch's headers are written in; older compilers do not know the newer one."""
FLAGS = (f"-std={STANDARD}", "-fPIC", "-fvisibility=hidden")
LIBRARIES = ("-ltorch_cpu", "-lc10")
BUILD_LIMITS = Limits(wall_s=300, cpu_s=300)


@dataclass(frozen=True)
class Native:
    """The native operators are in force. `path` is the library they came from; `built` if this call built it."""

    path: Path
    built: bool


_lock = threading.Lock()
_native: Native | None = None


def ensure_native(cache_dir: Path | str) -> Native | Missing:
    """Put the native operators in force, building them into cache_dir if need be. Later calls return the first result.

    On Missing the Python operators go on serving: same behaviour, some microseconds more per call.
    """
    global _native
    with _lock:
        if _native is not None:
            return _native
        ops.define_ops()
        found = find_or_build(Path(cache_dir))
        if isinstance(found, Missing):
            return found
        failure = _install(found.path)
        if failure is not None:
            return failure
        _native = found
        return found


def find_or_build(cache_dir: Path) -> Native | Missing:
    """The library, built if need be but not loaded."""
    toolchain = find_cxx()
    if isinstance(toolchain, Missing):
        return toolchain
    try:
        path = cache_dir / f"op-{_digest(toolchain)}.so"
        if path.is_file():
            return Native(path, built=False)
        cache_dir.mkdir(parents=True, exist_ok=True)
        with scratch.folder("building", cache_dir) as folder:
            return _build(toolchain, Path(folder), path)
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
        return Missing(f"cannot build the operator library: {error}", f"make {cache_dir} writable")


def _digest(toolchain: Toolchain) -> str:
    parts = [torch.__version__, toolchain.version, *FLAGS, *COMPILED.values()]
    parts += [(SOURCES / name).read_text() for name in (*COMPILED, "abi.h", "library.h")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _build(toolchain: Toolchain, folder: Path, path: Path) -> Native | Missing:
    """Compile the sources side by side, and link them."""
    torch_folder = Path(torch.__file__).parent
    include, libraries = f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}"

    def compile_one(name: str) -> Missing | None:
        source = str(SOURCES / name)
        return _run(toolchain, [*FLAGS, COMPILED[name], include, "-c", source], folder)

    with ThreadPoolExecutor(max_workers=len(COMPILED)) as threads:
        failures = [failure for failure in threads.map(compile_one, COMPILED) if failure]
    if failures:
        return failures[0]
    objects = [str(Path(name).with_suffix(".o")) for name in COMPILED]
    linked = ["-shared", *objects, "-o", "op.so", libraries, *LIBRARIES]
    failure = _run(toolchain, linked, folder)
    if failure is not None:
        return failure
    with (folder / "op.so").open("rb") as built:
        os.fsync(built.fileno())
    (folder / "op.so").replace(path)
    return Native(path, built=True)


def _run(toolchain: Toolchain, arguments: Sequence[str], folder: Path) -> Missing | None:
    """Run the compiler; what went wrong, if anything did."""
    match run_limited([str(toolchain.path), *arguments], folder, BUILD_LIMITS):
        case Finished(0, _, _):
            return None
        case Finished(_, log, _):
            reason = "the operator library does not compile"
        case TimedOut(log, seconds):
            reason = f"compiling the operator library took more than {seconds:.0f} s"
        case StartFailed(log):
            reason = "the C++ compiler does not start"
    return Missing(reason, "see the log; the Python operators serve meanwhile", log)


_ResolverType = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)


_resolve = _ResolverType(lambda key: int(registry.resolve(key)))

_StandInType = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64
)
ABSENT, DONE, FAILED = range(3)
"""What a stand-in's caller is told."""


def _run_stand_in(key: int, handles: Any, count: int) -> int:
    """Replace the tensors behind `handles`, which are ours from now on, by the outputs of what stands in for a key."""
    try:
        capsule, address = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
        capsule.restype, capsule.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        steal = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr
        give = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor
        inputs = [steal(capsule(handles[i], None, None)) for i in range(count)]
        stand_in = operator_library.find_stand_in(key)
        if stand_in is None:
            return ABSENT
        found = stand_in(*inputs)
        for i, value in enumerate(found if isinstance(found, tuple) else (found,)):
            handles[i] = address(give(value), None)
        return DONE
    except Exception:
        log.exception("what stands in for kernel key %d failed", key)
        return FAILED


_stand_in = _StandInType(_run_stand_in)


class _Library:
    """The loaded operator library, as the registry's mirror."""

    def __init__(self, path: Path, launcher_address: int) -> None:
        self._functions = ctypes.CDLL(str(path))
        self._launcher = ctypes.c_void_p(launcher_address)

    def install(self) -> bool:
        return bool(self._functions.ca_op_install(_resolve, _stand_in) == 0)

    def bind(self, key: int, program: Program) -> None:
        words = encode(program.plan)
        array = (ctypes.c_int64 * len(words))(*words)
        handles = [part.handle.address for part in program.parts]
        addresses, count = (ctypes.c_void_p * len(handles))(*handles), ctypes.c_int64(len(words))
        if (
            self._functions.ca_op_bind(ctypes.c_int64(key), self._launcher, addresses, array, count)
            != 0
        ):
            raise AssertionError("the operator library and its caller disagree about bindings")

    def unbind(self, key: int) -> None:
        self._functions.ca_op_unbind(ctypes.c_int64(key))


def _install(path: Path) -> Missing | None:
    try:
        from sandbox import _launcher

        library = _Library(path, _launcher.abi_address())
    except ImportError as error:
        return Missing(
            f"the launcher extension is missing: {error}", "install the package with a C++ compiler"
        )
    except OSError as error:
        return Missing(f"the operator library does not load: {error}", f"delete {path}")
    registry.attach(library)
    if not library.install():
        return Missing("torch does not accept the operator library", f"delete {path}")
    return None
