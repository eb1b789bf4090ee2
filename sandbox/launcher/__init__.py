"""Loading compiled candidates and running them behind a few torch operators.

The same launcher runs a candidate while it is judged and after it is promoted.
"""

from sandbox.compile.toolchain import Missing
from sandbox.launcher.native import Native, ensure_native
from sandbox.launcher.ops import define_ops, op_for
from sandbox.launcher.program import LoadFailed, Program, load_program
from sandbox.launcher.registry import (
    UnknownKernelError,
    announce,
    bind,
    is_bound,
    set_resolver,
    unbind,
)
from sandbox.operator_library import op_name

__all__ = [
    "LoadFailed",
    "Missing",
    "Native",
    "Program",
    "UnknownKernelError",
    "announce",
    "bind",
    "define_ops",
    "ensure_native",
    "is_bound",
    "load_program",
    "op_for",
    "op_name",
    "set_resolver",
    "unbind",
]
