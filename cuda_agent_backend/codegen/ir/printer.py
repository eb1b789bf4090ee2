"""Loop bodies -> C++ or CUDA statements over lanes.

Both targets share this printer and differ in their prelude, a header that gives the same functions in namespace
``ca`` over ``ca::vec<T, L>``: ``L`` lanes of ``T``. Values of a body are vectors of lanes along one loop variable,
the *lane*; with ``L == 1`` the same text is scalar code. Half-precision values are computed in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.indices import coefficient
from cuda_agent_backend.codegen.ir.special_functions import FUNCTIONS
from cuda_agent_backend.codegen.ir.ssa import (
    FLOAT_BITS,
    GATHER,
    PLACE,
    PLACE_EXPR,
    Body,
    Instruction,
    Value,
    number_of,
    place_symbol,
    whole_number_of,
)

STORAGE_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "ca::f16",
    torch.bfloat16: "ca::bf16",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}
COMPUTE_TYPES = {
    **STORAGE_TYPES,
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.uint16: "uint16_t",
}

HALVES = (torch.float16, torch.bfloat16)


def half_types(dtypes: Iterable[torch.dtype]) -> list[str]:
    """What has the prelude of cuda define the types of half precision, where there are such."""
    return [] if set(HALVES).isdisjoint(dtypes) else ["#define CA_HALF"]


#: operations of Inductor's loop IR that have a function of the same meaning in both preludes
OPERATIONS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "div": "truediv", "div_rn": "truediv",
    "floordiv": "floordiv",
    "truncdiv": "truncdiv", "mod": "fmod", "fmod": "fmod", "remainder": "remainder", "neg": "neg", "abs": "abs",
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10",
    "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "atan2": "atan2", "hypot": "hypot", "erf": "erf",
    "erfc": "erfc", "sigmoid": "sigmoid", "relu": "relu", "maximum": "maximum", "minimum": "minimum",
    "where": "where", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_not": "logical_not",
    "logical_xor": "logical_xor", "and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
    "bitwise_not": "bitwise_not", "invert": "bitwise_not", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "round": "round", "sign": "sign", "signbit": "signbit", "isnan": "isnan", "isinf": "isinf", "pow": "pow",
    "square": "square", "reciprocal": "reciprocal", "copysign": "copysign", "fma": "fma", "lgamma": "lgamma",
    "safe_fmod": "safe_fmod", "safe_remainder": "safe_remainder", "safe_floordiv": "safe_floordiv",
    "safe_truncdiv": "safe_truncdiv", "safe_lt": "safe_lt", "safe_le": "safe_le", "safe_gt": "safe_gt",
    "safe_ge": "safe_ge",
    "libdevice_exp": "exp", "libdevice_log": "log", "libdevice_sqrt": "sqrt", "libdevice_sigmoid": "sigmoid",
    "mul_rn": "mul_rounded", **FUNCTIONS,
}  # fmt: skip
PRINTED = {**OPERATIONS, FLOAT_BITS: FLOAT_BITS}
"""The same, with what lowering here makes of its own."""


def c_index(expr: sympy.Expr) -> str:
    """An index expression as C over 64-bit (cpu) or 32-bit (cuda) signed integers; all terms are >= 0.

    Raises:
        Unsupported: a function that indices of our loops do not hold.
    """
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return str(expr.name)
    if expr.is_Add:
        return "(" + " + ".join(c_index(a) for a in expr.args) + ")"
    if expr.is_Mul:
        return "(" + " * ".join(c_index(a) for a in expr.args) + ")"
    if isinstance(expr, FloorDiv):
        return f"ca::idiv({c_index(expr.args[0])}, {c_index(expr.args[1])})"
    if isinstance(expr, ModularIndexing):
        base, divisor, modulus = expr.args
        return f"ca::imod(ca::idiv({c_index(base)}, {c_index(divisor)}), {c_index(modulus)})"
    name = type(expr).__name__
    if name in ("Mod", "PythonMod"):
        return f"ca::imod({c_index(expr.args[0])}, {c_index(expr.args[1])})"
    if name in ("Max", "Min"):
        first, *rest = [c_index(a) for a in expr.args]
        for r in rest:
            first = f"ca::i{name.lower()}({first}, {r})"
        return first
    if expr.is_Pow and expr.args[1].is_Integer and int(expr.args[1]) > 0:
        return "(" + " * ".join([c_index(expr.args[0])] * int(expr.args[1])) + ")"
    raise Unsupported(f"index function {name}")


def c_place(expr: sympy.Expr) -> str:
    """A place in memory as C: as `c_index`, but for terms that may exceed 32 bits where their sum does not.

    Terms that are taken off are what another counts too much: `25500 * j - 3314999 * (j / 130 % 25500)`.
    """
    if not exceeds(expr):
        return c_index(expr)
    return "(" + " + ".join(_wide_term(term) for term in expr.args) + ")"


def exceeds(expr: sympy.Expr) -> bool:
    """Whether a term of a sum that is never negative may be larger than the sum, and than a position."""
    factors = [term.as_coeff_Mul()[0] for term in expr.args] if expr.is_Add else []
    return any(f < 0 for f in factors) and any(f > 1 for f in factors)


def _wide_term(term: sympy.Expr) -> str:
    factor, rest = term.as_coeff_Mul()
    return c_index(term) if factor == 1 else f"int64_t({factor}) * {c_index(rest)}"


def literal(text: str, dtype: torch.dtype) -> str:
    """A C literal of the compute type for the Python ``repr`` of a number."""
    ctype = COMPUTE_TYPES[dtype]
    if dtype == torch.bool:
        return "true" if text in ("True", "1", "1.0") else "false"
    if dtype.is_floating_point:
        value = number_of(text)
        if math.isnan(value):
            return f"ca::limits<{ctype}>::nan()"
        if math.isinf(value):
            return f"{'-' if value < 0 else ''}ca::limits<{ctype}>::inf()"
        return f"{ctype}({value.hex()})" if ctype == "double" else f"float({value!r})"
    number = whole_number_of(text)
    if number == -(2**63):
        return "(-9223372036854775807ll - 1)"
    return f"{ctype}({number}ll)"


def is_double(text: str) -> bool:
    """Whether a double holds the number of which this is the Python ``repr``."""
    return not text.lstrip("-").isdigit() or int(float(text)) == int(text)


def as_double(text: str) -> str:
    """That number in C, as a double."""
    names = {"True": "1.0", "False": "0.0", "inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}
    return f"double({names.get(text, text)})"


@dataclass(frozen=True)
class Access:
    """How one access runs along the lanes: ``step`` elements per lane, or None for an index vector."""

    step: int | None

    @staticmethod
    def of(index: sympy.Expr, lane: sympy.Symbol | None) -> Access:
        return Access(0 if lane is None else coefficient(index, lane))


@dataclass
class Printer:
    """Prints bodies over lanes along ``lane`` (None: every lane sees the same point).

    ``pointer(buffer)`` names the base pointer of a memory buffer. ``local(instruction)`` prints the read of a
    row-local buffer, ``local_masked(instruction, mask)`` one whose index may leave the buffer where it is masked. The
    text assumes an integral constant ``L`` in scope.
    """

    lane: sympy.Symbol | None
    pointer: Callable[[str], str]
    local: Callable[[Instruction], str]
    dtype_of: Callable[[str], torch.dtype]
    indent: str = "    "
    local_masked: Callable[[Instruction, str], str] | None = field(default=None, kw_only=True)
    narrow_places: set[str] = field(default_factory=set, kw_only=True)
    """Names of places that are 32-bit integers."""
    unread: set[str] = field(default_factory=set, init=False)
    """Names of values into which nothing goes that was read from memory: places, and weights by them."""

    def lines(self, body: Body, prefix: str = "v", mask: str | None = None) -> list[str]:
        """Statements ``auto v0 = ...;`` for every instruction, in order."""
        out: list[str] = []
        for i in body.instructions:
            if self._is_unread(i, prefix):
                self.unread.add(f"{prefix}{i.result.number}")
            if i.op == "masked":
                out += self._masked(i, prefix, mask)
            else:
                out.append(f"auto {prefix}{i.result.number} = {self._expression(i, prefix, mask)};")
        return [self.indent + line for line in out]

    def _is_unread(self, i: Instruction, prefix: str) -> bool:
        values = [self._operand(o, prefix) for o in i.operands if isinstance(o, Value)]
        if i.op in ("constant", "index_expr"):
            return True
        known = i.op in OPERATIONS or i.op in ("to_dtype", "identity", "libdevice_identity")
        return known and bool(values) and self.unread.issuperset(values)

    def _masked(self, i: Instruction, prefix: str, mask: str | None) -> list[str]:
        assert i.body is not None
        own = self._operand(i.operands[0], prefix)
        name = f"{prefix}{i.result.number}m"
        combined = own if mask is None else f"ca::logical_and({mask}, {own})"
        inner = self.lines(i.body, prefix, name)
        result = f"{prefix}{i.body.results[0].number}"
        chosen = f"ca::where({name}, {result}, {self._like(result, i.operands[1])})"
        return [f"auto {name} = {combined};", *inner, f"auto {prefix}{i.result.number} = {chosen};"]

    def _like(self, value: str, text: str) -> str:
        """The number of which ``text`` is the Python ``repr``, in the type of a value."""
        if is_double(text):
            return f"ca::like({value}, {as_double(text)})"
        high = int(text) >> 32 << 32
        low = int(text) - high
        return f"ca::add(ca::like({value}, double({high})), ca::like({value}, double({low})))"

    def _operand(self, operand: object, prefix: str) -> str:
        if isinstance(operand, Value):
            return f"{prefix}{operand.number}"
        if isinstance(operand, bool):
            return "true" if operand else "false"
        return repr(operand)

    def _alike(self, i: Instruction, prefix: str) -> list[str]:
        """The operands; numbers as vectors of the type of the value that they meet."""
        texts = [self._operand(o, prefix) for o in i.operands]
        if all(isinstance(o, Value) for o in i.operands):
            return texts
        pairs = list(zip(i.operands, texts, strict=True))
        of = [text for o, text in pairs[i.op == "where" :] if isinstance(o, Value)]
        if not of:
            raise Unsupported(f"{i.op} of numbers alone")
        return [text if isinstance(o, Value) else self._like(of[0], repr(o)) for o, text in pairs]

    def _expression(self, i: Instruction, prefix: str, mask: str | None) -> str:
        if i.op == "load":
            return self._load(i, mask)
        if i.op == GATHER:
            return self._gather(i, prefix, mask)
        if i.op == PLACE_EXPR:
            assert i.dtype is not None
            return f"ca::to<{COMPUTE_TYPES[i.dtype]}>({self._gathered(i, prefix, wide=True)})"
        if i.op == PLACE:
            return self._place(i, prefix, mask)
        if i.op == "local":
            if mask is not None and self.local_masked is not None:
                return self.local_masked(i, mask)
            return self.local(i)
        if i.op == "constant":
            assert i.dtype is not None
            return f"ca::splat<{COMPUTE_TYPES[i.dtype]}, L>({literal(i.operands[0], i.dtype)})"
        if i.op == "index_expr":
            return self._index_value(i)
        operands = ", ".join(self._alike(i, prefix))
        if i.op == "to_dtype":
            assert i.dtype is not None
            return f"ca::to<{COMPUTE_TYPES[i.dtype]}>({operands})"
        if i.op in ("identity", "libdevice_identity"):
            return operands
        if i.op not in PRINTED:
            raise Unsupported(f"loop operation {i.op}")
        # Merged with what is added, `place * scale - 0.5` may not be the zero that it is in eager mode, where a weight
        # of zero makes NaN of an infinity, and may be on the other side of an element.
        exact = i.op == "mul" and self._is_unread(i, prefix)
        return f"ca::{'mul_rounded' if exact else PRINTED[i.op]}({operands})"

    def vector_index(self, index: sympy.Expr) -> str:
        """``index`` as ``vec<int64_t, L>`` where it is not linear in the lane."""
        assert self.lane is not None
        first = f"int64_t({self.lane.name})" if exceeds(index) else self.lane.name
        return c_place(index.xreplace({self.lane: sympy.Symbol(f"ca::iota<L>({first})")}))

    def _index_value(self, i: Instruction) -> str:
        assert i.index is not None and i.dtype is not None
        ctype = COMPUTE_TYPES[i.dtype]
        step = Access.of(i.index, self.lane).step
        if step == 0:
            return f"ca::splat<{ctype}, L>({ctype}({c_place(i.index)}))"
        if step == 1 and i.dtype == torch.int32:
            return f"ca::iota32<L>({c_place(i.index)})"
        return f"ca::to<{ctype}>({self.vector_index(i.index)})"

    def _place(self, i: Instruction, prefix: str, mask: str | None) -> str:
        x, size, check, wraps = i.operands
        flags = f"{str(check).lower()}, {str(wraps).lower()}"
        condition = "" if mask is None or not check else f", {mask}"
        text = f"ca::place<{flags}>({self._operand(x, prefix)}, {size}{condition})"
        if i.dtype != torch.int32:
            return text
        self.narrow_places.add(f"{prefix}{i.result.number}")
        return f"ca::to<int32_t>({text if check or wraps else self._operand(x, prefix)})"

    def _gather(self, i: Instruction, prefix: str, mask: str | None) -> str:
        assert i.buffer is not None
        index = self._gathered(i, prefix)
        if mask is None:
            return f"ca::gather<L>({self.pointer(i.buffer)}, {index})"
        return f"ca::gather_masked<L>({self.pointer(i.buffer)}, {index}, {mask})"

    def _gathered(self, i: Instruction, prefix: str, *, wide: bool = False) -> str:
        """An index with places that depend on data, as 64-bit integers unless all places are narrow (and not ``wide``,
        for what is no place in memory may exceed 32 bits)."""
        assert i.index is not None
        places = [self._operand(o, prefix) for o in i.operands]
        narrow = not (wide or exceeds(i.index)) and all(n in self.narrow_places for n in places)
        names = {
            place_symbol(number): sympy.Symbol(
                f"ca::to<int64_t>({name})" if name in self.narrow_places and not narrow else name
            )
            for number, name in enumerate(places)
        }
        if self.lane is not None:
            ctype = "int" if narrow else "int64_t"
            names[self.lane] = sympy.Symbol(f"ca::iota<L>({ctype}({self.lane.name}))")
        return c_place(i.index.xreplace(names))

    def address(self, buffer: str, index: sympy.Expr) -> str:
        """Pointer to the element of ``buffer`` at ``index``."""
        return f"{self.pointer(buffer)} + {c_place(index)}"

    def _load(self, i: Instruction, mask: str | None) -> str:
        assert i.buffer is not None and i.index is not None
        pointer, step = self.pointer(i.buffer), Access.of(i.index, self.lane).step
        if mask is not None:
            index = (
                self.vector_index(i.index)
                if step is None or step != 0
                else (f"ca::splat<int64_t, L>({c_place(i.index)})")
            )
            return f"ca::gather_masked<L>({pointer}, {index}, {mask})"
        if step is None:
            return f"ca::gather<L>({pointer}, {self.vector_index(i.index)})"
        at = self.address(i.buffer, i.index)
        if step == 0:
            return f"ca::broadcast<L>({at})"
        return f"ca::load<L>({at})" if step == 1 else f"ca::load_strided<L>({at}, {step})"

    def store(self, buffer: str, index: sympy.Expr, value: str, *, stream: bool = False) -> str:
        """Store of ``value`` (a vector of lanes); ``stream`` asks for a store past the caches."""
        pointer, step = self.pointer(buffer), Access.of(index, self.lane).step
        if step is None:
            return f"ca::scatter<L>({pointer}, {self.vector_index(index)}, {value});"
        at = self.address(buffer, index)
        if step == 1:
            return f"ca::store{'_stream' if stream else ''}<L>({at}, {value});"
        if step == 0:
            return f"ca::store_scalar<L>({at}, {value});"
        return f"ca::store_strided<L>({at}, {step}, {value});"
