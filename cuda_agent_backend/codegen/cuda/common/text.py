"""Small pieces of CUDA text that every family writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cuda_agent_backend.codegen.ir.kernel import Dim


def indented(lines: Sequence[str], pad: str = "  ") -> list[str]:
    """``lines``, each moved in by ``pad``."""
    return [pad + line for line in lines]


def block(lines: Sequence[str]) -> list[str]:
    """``lines`` in a scope of their own."""
    return ["{", *indented(lines), "}"]


def decompose(row: str, outer: Sequence[Dim], index_type: str) -> list[str]:
    """Declarations of the loop variables ``outer`` (row-major) at the flat position ``row``, an expression."""
    out, stride = [], 1
    for number, (symbol, size) in reversed(list(enumerate(outer))):
        value = row if stride == 1 else f"ca::idiv({row}, {stride})"
        if number:
            value = f"ca::imod({value}, {size})"
        out.append(f"const {index_type} {symbol} = {value};")
        stride *= size
    return out[::-1]


def kernel_text(
    name: str, bounds: int | str, parameters: Iterable[str], body: Sequence[str]
) -> str:
    """The function of a kernel. bounds: what its registers are limited by, as ``__launch_bounds__`` has it."""
    return "\n".join(kernel_lines(name, bounds, parameters, indented(body)))


def kernel_lines(
    name: str, bounds: int | str, parameters: Iterable[str], body: Sequence[str]
) -> list[str]:
    """As `kernel_text`, in lines, with ``body`` as it is."""
    return [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{name}({', '.join(parameters)}) {{",
        *body,
        "}",
    ]
