"""Imports a candidate's Python source and has Triton compile its kernels: `python -I -S triton_child.py JOB ANSWER`.

For a process that is confined: the source may do anything when it is imported. JOB: {"packages": folders to import
Triton from, "source": a file, "arch": 90 and the like, "kernels": requests of `triton_plan`}. ANSWER is written with
the PTX of each and Triton's facts; nobody believes them (see `compile_triton`). What goes wrong is said on stderr.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

FACTS = (
    "name",
    "num_warps",
    "shared",
    "tmem_size",
    "global_scratch_size",
    "profile_scratch_size",
    "launch_cooperative_grid",
    "launch_pdl",
    "tensordesc_meta",
)


class Unfit(ValueError):
    """The plan does not fit the source."""


def main() -> int:
    """Entry point."""
    job = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:0] = job["packages"]
    try:
        module = _import(job["source"])
        built = [_compile(module, wanted, job["arch"]) for wanted in job["kernels"]]
    except BaseException as error:
        print(_said(error, job["source"]), file=sys.stderr)
        return 1
    Path(sys.argv[2]).write_text(json.dumps({"kernels": built}))
    return 0


def _import(path: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    return module


def _compile(module: Any, wanted: dict[str, Any], arch: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = _kernel(module, wanted["kernel"])
    signature, constants, attributes = signature_of(function.arg_names, wanted)
    source = ASTSource(function, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=wanted["options"])
    metadata = made.metadata._asdict()
    facts = {name: metadata.get(name, 0) for name in FACTS}
    return {**facts, "tensordesc_meta": bool(facts["tensordesc_meta"]), "ptx": made.asm["ptx"]}


def _kernel(module: Any, name: str) -> Any:
    """The function under the name, without what would choose its constants for it."""
    from triton.runtime.jit import JITFunction

    found = getattr(module, name, None)
    while found is not None and not isinstance(found, JITFunction) and hasattr(found, "fn"):
        found = found.fn
    if not isinstance(found, JITFunction):
        has = sorted(key for key, value in vars(module).items() if hasattr(value, "arg_names"))
        raise Unfit(f"no @triton.jit function {name!r}; the source has: {', '.join(has) or 'none'}")
    return found


def signature_of(
    names: list[str], wanted: dict[str, Any]
) -> tuple[dict[str, str], dict[tuple[int], Any], dict[tuple[int], Any]]:
    """What ASTSource wants: the types of the parameters, values of constants, attributes; the last two by position."""
    given = wanted["constexprs"]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise Unfit(f"{wanted['kernel']} has no parameter {', '.join(unknown)}; it has {names}")
    open_names = [name for name in names if name not in given]
    args = wanted["args"]
    if len(args) != len(open_names):
        raise Unfit(
            f"{wanted['kernel']} takes {open_names} beside its constexprs; the plan gives {len(args)} args"
        )
    described = dict(zip(open_names, args, strict=True))
    signature, constants, attributes = {}, {}, {}
    for position, name in enumerate(names):
        argument = described.get(name, {"constant": given.get(name)})
        signature[name] = argument.get("type", "constexpr")
        if "constant" in argument:
            constants[(position,)] = argument["constant"]
        elif argument["divisible"]:
            attributes[(position,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _said(error: BaseException, source: str) -> str:
    """The error and what caused it, with the lines of the source that they come from."""
    if isinstance(error, Unfit):
        return str(error)
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        frames = traceback.extract_tb(seen.__traceback__)
        lines = [f"line {f.lineno}: {f.line}" for f in frames if f.filename == source]
        parts = [*lines, "".join(traceback.format_exception_only(seen)).strip(), *parts]
        seen = seen.__cause__
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
