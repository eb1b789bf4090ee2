"""compute-sanitizer on a candidate that is about to be promoted: memcheck, racecheck and initcheck.

It sees what comparing outputs cannot: reads out of bounds whose values are not used, memory that is read before it is
written, and races between threads that this time went well. A tool that cannot run here, or not in time,
is recorded with the reason and refuses nothing; an error that one reports does.

The kernels run in a process of their own, with the file system that a worker sees and no rights. It has no filter of
system calls: the sanitizer talks to what it watches over a socket. Only machine code for the GPU
is the candidate's there; nothing of it runs on the host.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sandbox import scratch
from sandbox.accuracy.perturb_inputs import flat_storage
from sandbox.compile.toolchain import Missing, find_cuda_tool
from sandbox.isolation.confine import offered, policy
from sandbox.isolation.landlock import View
from sandbox.isolation.limits import Finished, Limits, TimedOut, run_limited
from sandbox.isolation.privileges import next_uid
from sandbox.isolation.views import installation, worker_view
from sandbox.launcher.program import segments_of, steps_of
from sandbox.plan.plan import LibraryCall, Plan
from sandbox.sanitizer import driver

if TYPE_CHECKING:
    import torch

TOOLS = ("memcheck", "racecheck", "initcheck")
SECONDS = 60.0
"""For one tool; kernels run some ten to a hundred times slower under it."""
ADDRESS_SPACE = 1 << 46
MAX_INPUT_BYTES = 1 << 30
FOLDERS = ("bin", "compute-sanitizer", "extras/compute-sanitizer")
DETAIL_LINES = 6
DEVICES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
"""Variables that say which device is the first one."""

Status = Literal["clean", "errors", "not run"]


@dataclass(frozen=True)
class ToolReport:
    """What one tool said. detail: its first errors, or why it was not run."""

    tool: str
    status: Status
    detail: str = ""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@lru_cache
def find_sanitizer() -> Path | Missing:
    """The compute-sanitizer program of the toolkit or of its wheel. Looked up once per process."""
    return find_cuda_tool("compute-sanitizer", FOLDERS) or Missing(
        "no compute-sanitizer",
        "install the CUDA toolkit, or the package nvidia-cuda-sanitizer-api",
    )


def sanitize(binary: Path, plan: Plan, draw: Callable[[], list[torch.Tensor]]) -> list[ToolReport]:
    """Run a cubin under each tool. draw: gives inputs, CPU tensors in the plan's layout; asked only if they serve."""
    tool = find_sanitizer()
    if isinstance(tool, Missing):
        return not_run(f"{tool.reason}; {tool.remedy}")
    size = sum(spec.extent * spec.itemsize for spec in plan.input_specs)
    if size > MAX_INPUT_BYTES:
        return not_run(f"inputs of {size} bytes; at most {MAX_INPUT_BYTES}")
    try:
        with scratch.folder("sanitizing") as place:
            folder = Path(place)
            folder.chmod(0o711)  # the tools' users pass through it
            write_job(folder, binary, plan, draw())
            places = [_linked(folder, name) for name in TOOLS]
            with ThreadPoolExecutor(len(TOOLS)) as threads:
                return list(threads.map(_run, [tool] * len(TOOLS), TOOLS, places))
    except (OSError, RuntimeError) as error:  # a full disk, memory that is not there
        return not_run(f"{type(error).__name__}: {error}")


def _linked(folder: Path, name: str) -> Path:
    """A folder with the same files: each tool runs as another user, to whom its own folder is given."""
    place = folder / name
    place.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            file.chmod(
                0o644
            )  # whichever of the tools' users it belongs to in the end, all of them read it
            os.link(file, place / file.name)
    return place


def not_run(reason: str) -> list[ToolReport]:
    """What every tool's report is where none is run."""
    return [ToolReport(name, "not run", reason) for name in TOOLS]


def write_job(folder: Path, binary: Path, plan: Plan, inputs: Sequence[torch.Tensor]) -> None:
    """What `sanitized` reads: job.json, the cubin, one file of bytes for each input."""
    import torch

    shutil.copyfile(binary, folder / "kernel.cubin")
    for number, tensor in enumerate(inputs):
        content = flat_storage(tensor).contiguous().view(torch.uint8).numpy()
        (folder / f"input-{number}").write_bytes(content.tobytes())
    (folder / "job.json").write_text(json.dumps(job_of(plan)))


def job_of(plan: Plan) -> dict[str, Any]:
    """The plan as `sanitized` wants it: sizes in bytes in plan order, and launches with their arguments."""
    from sandbox import _launcher

    buffers, inputs = [], 0
    for buffer in plan.buffers:
        content = ""
        if buffer.kind == "input":
            content, inputs = f"input-{inputs}", inputs + 1
        buffers.append({"bytes": buffer.spec.extent * buffer.spec.itemsize, "content": content})
    steps = [
        (*front, [_text(item) if isinstance(item, bytes) else item for item in arguments])
        for *front, arguments in steps_of(plan)
    ]
    return {
        "launcher": _launcher.__file__,
        "binary": "kernel.cubin",
        "buffers": buffers,
        "steps": steps,
        "segments": _segments(plan),
    }


def _segments(plan: Plan) -> list[tuple[int, int, tuple[int, int, int] | None]]:
    """Launches that follow each other, from which to which, and between them what a library call writes: the buffer,
    where from and how much in bytes. It is filled, elements between those that the call writes with them."""
    segments: list[tuple[int, int, tuple[int, int, int] | None]] = []
    position = 0
    index = {buffer.name: number for number, buffer in enumerate(plan.buffers)}
    for segment in segments_of(plan):
        if isinstance(segment, LibraryCall):
            out = segment.out
            number = index[out.buffer]
            size = plan.buffers[number].spec.itemsize
            filled = (number, out.offset * size, (out.end - out.offset) * size)
            segments.append((position, position, filled))
        else:
            segments.append((position, position + len(segment), None))
            position += len(segment)
    return segments


def _text(scalar: bytes) -> str:
    return base64.b64encode(scalar).decode()


def _run(tool: Path, name: str, folder: Path) -> ToolReport:
    argv = [str(tool), "--tool", name, "--report-api-errors", "no", "--print-limit", "10"]
    argv += ["--padding", "512"] if name == "memcheck" else []
    argv += [sys.executable, "-I", "-S", driver.__file__, "."]
    wanted = replace(
        policy(offered(), _view(tool, folder), {}, next_uid([str(tool)])), filter=False
    )
    limits = Limits(SECONDS, int(4 * SECONDS), ADDRESS_SPACE)
    variables = {name: os.environ[name] for name in DEVICES if name in os.environ}
    done = run_limited(argv, folder, limits, variables, wanted)
    match done:
        case Finished(_, output, seconds):
            return read_report(name, output, seconds)
        case TimedOut(output, seconds):
            return read_unfinished(name, output, seconds)
        case _:
            return ToolReport(name, "not run", done.reason)


def _view(tool: Path, folder: Path) -> View:
    """A worker's, with the tool, and all of /proc: "self" there would be the tool, and what it starts needs its own."""
    view = worker_view("cuda", folder, folder, [], "")
    read = (*view.read, *installation(tool, Path.home()), "/proc")
    return replace(view, read=read, devices=(*view.devices, "/proc"))


_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error")
_HAZARDS = re.compile(r"RACECHECK SUMMARY: .*\((\d+) error")


def read_report(name: str, output: str, seconds: float) -> ToolReport:
    """What a tool's output says. Without a summary, or where the kernels did not come to their end, it was not run."""
    summary = (_HAZARDS if name == "racecheck" else _ERRORS).search(output)
    if summary is not None and int(summary.group(1)):
        return ToolReport(name, "errors", _first_error(output), seconds)
    if summary is None or driver.FINISHED not in output:
        return ToolReport(name, "not run", output.strip()[-600:] or "it said nothing", seconds)
    return ToolReport(name, "clean", "", seconds)


_FOUND = re.compile(
    r"^=+ (Invalid |Misaligned |Uninitialized |Error: (Race|Potential|.*hazard))", re.MULTILINE
)


def read_unfinished(name: str, output: str, seconds: float) -> ToolReport:
    """What the output of a tool that was ended says: reporting very many errors takes it very long."""
    if _FOUND.search(output):
        return ToolReport(name, "errors", _first_error(output), seconds)
    return ToolReport(name, "not run", f"not done within {SECONDS:g} s", seconds)


def _first_error(output: str) -> str:
    """The lines of the first error, without the prefix and the host's stack."""
    lines = [line.lstrip("= ").strip() for line in output.splitlines() if line.startswith("=====")]
    told = [line for line in lines[1:] if line and "Host Frame" not in line]
    return "\n".join(told[:DETAIL_LINES])
