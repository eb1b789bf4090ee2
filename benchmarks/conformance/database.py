"""Torch's operator database, as the conformance run takes it: names, dtypes, and what is left out and why."""

from __future__ import annotations

import functools
import sys
import types
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "int64",
    "float64",
    "int32",
    "bool",
    "uint8",
    "int16",
    "int8",
)
"""In the order in which they are run. Complex numbers are Inductor's fallbacks; the rest few operators take."""
RAGGED = ("sparse", "nested", "to_sparse", "jagged", "segment_reduce")
"""Parts of the names of operators whose tensors are not strided."""
UNSET = ("empty", "new_empty", "resize_")
"""What names of operators begin with whose results are whatever was in memory."""
FROZEN_BY = "__allow_nonbracketed_mutation_flag"
"""A variable of `torch.backends`: False once its flags are frozen."""


def expecttest_stands_in() -> None:
    """Torch's test modules import this package for a base class of tests, of which the database has none."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = module


@contextmanager
def _flags_as_they_are() -> Iterator[None]:
    """Importing torch's tests freezes the flags of `torch.backends` for the whole process; nobody here asked for it."""
    of_torch = torch.backends.disable_global_flags.__globals__
    before = of_torch[FROZEN_BY]
    try:
        yield
    finally:
        of_torch[FROZEN_BY] = before


@functools.cache
def operators() -> dict[str, Any]:
    """The entries of the database (`OpInfo`) by name; a variant's is behind a dot."""
    expecttest_stands_in()
    with _flags_as_they_are():
        from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Any] = {}
    for entry in op_db:
        name = entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else "")
        if not any(part in name for part in RAGGED) and not name.startswith(UNSET):
            found[name] = entry
    return found


def dtypes_of(name: str, device: str) -> list[str]:
    """Those of `DTYPES` that an operator takes on a device."""
    supported = operators()[name].supported_dtypes(device)
    return [dtype for dtype in DTYPES if getattr(torch, dtype) in supported]


def has_gradient(name: str, dtype: str, device: str) -> bool:
    """Whether an operator has a backward pass in this dtype."""
    entry = operators()[name]
    kind = getattr(torch, dtype)
    return bool(entry.supports_autograd) and kind in entry.supported_backward_dtypes(device)


def elementwise(name: str) -> bool:
    """Whether values at one place of the inputs decide one place of the output: any value is then allowed. Not the
    degree of a polynomial, which eager counts up to."""
    return "polynomial" not in name and type(operators()[name]).__name__ in (
        "UnaryUfuncInfo",
        "BinaryUfuncInfo",
    )
