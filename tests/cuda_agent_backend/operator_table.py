"""What each operator of the loop IR is in eager mode."""

from __future__ import annotations

import torch
from operator_kit import Operator
from torch import Tensor, special


def _divisible(x: Tensor, y: Tensor) -> Tensor:
    """Eager raises on a whole zero, and its vectors make NaN of a rest where the quotient overflows or the divisor is
    no normal number; the rest is there all the same."""
    if not y.is_floating_point():
        return y != 0
    return (y.abs() > torch.finfo(y.dtype).tiny) & ~((x / y).isinf() & x.isfinite())


def _quotient_fits(x: Tensor, y: Tensor) -> Tensor:
    """Eager dies of the smallest number over -1."""
    return (y != 0) & ((y != -1) | (x != torch.iinfo(x.dtype).min))


def _same_signs(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """What cancels depends on how often is rounded."""
    return ((x * y).signbit() == z.signbit()) | z.isnan()


def _not_negative(x: Tensor, y: Tensor) -> Tensor:
    return y >= 0


def _truncated(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def _floored(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="floor")


def _fused(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y + z


_FLOATS = {
    "truediv": Operator(torch.true_divide, 2), "div": Operator(torch.true_divide, 2),
    "div_rn": Operator(torch.true_divide, 2), "exp": Operator(torch.exp), "exp2": Operator(torch.exp2),
    "expm1": Operator(torch.expm1), "log": Operator(torch.log), "log2": Operator(torch.log2),
    "log10": Operator(torch.log10), "log1p": Operator(torch.log1p), "sqrt": Operator(torch.sqrt),
    "rsqrt": Operator(torch.rsqrt), "sin": Operator(torch.sin), "cos": Operator(torch.cos),
    "tan": Operator(torch.tan), "asin": Operator(torch.asin), "acos": Operator(torch.acos),
    "atan": Operator(torch.atan), "sinh": Operator(torch.sinh), "cosh": Operator(torch.cosh),
    "tanh": Operator(torch.tanh, unsigned=True), "asinh": Operator(torch.asinh), "acosh": Operator(torch.acosh),
    "atanh": Operator(torch.atanh), "atan2": Operator(torch.atan2, 2), "hypot": Operator(torch.hypot, 2),
    "erf": Operator(torch.erf), "erfc": Operator(torch.erfc), "sigmoid": Operator(torch.sigmoid),
    "reciprocal": Operator(torch.reciprocal), "copysign": Operator(torch.copysign, 2),
    "lgamma": Operator(torch.lgamma), "libdevice_exp": Operator(torch.exp),
    "libdevice_log": Operator(torch.log), "libdevice_sqrt": Operator(torch.sqrt),
    "libdevice_sigmoid": Operator(torch.sigmoid), "fma": Operator(_fused, 3, known=_same_signs),
}  # fmt: skip
_ANY = {
    "eq": Operator(torch.eq, 2, "any"), "ne": Operator(torch.ne, 2, "any"), "lt": Operator(torch.lt, 2, "any"),
    "le": Operator(torch.le, 2, "any"), "gt": Operator(torch.gt, 2, "any"), "ge": Operator(torch.ge, 2, "any"),
    "logical_and": Operator(torch.logical_and, 2, "any"), "logical_or": Operator(torch.logical_or, 2, "any"),
    "logical_xor": Operator(torch.logical_xor, 2, "any"), "logical_not": Operator(torch.logical_not, 1, "any"),
    "isnan": Operator(torch.isnan, 1, "any"), "isinf": Operator(torch.isinf, 1, "any"),
    "maximum": Operator(torch.maximum, 2, "any", unsigned=True),
    "minimum": Operator(torch.minimum, 2, "any", unsigned=True),
    "add": Operator(torch.add, 2, "any"), "mul": Operator(torch.mul, 2, "any"),
    "where": Operator(torch.where, 3, "any"), "sign": Operator(torch.sign, 1, "any"),
    "signbit": Operator(torch.signbit, 1, "any"), "abs": Operator(torch.abs, 1, "numbers"),
}  # fmt: skip
_NUMBERS = {
    "sub": Operator(torch.sub, 2, "numbers"), "mul_rn": Operator(torch.mul, 2, "numbers"),
    "neg": Operator(torch.neg, 1, "numbers"),
    "fmod": Operator(torch.fmod, 2, "numbers", _divisible), "mod": Operator(torch.fmod, 2, "numbers", _divisible),
    "remainder": Operator(torch.remainder, 2, "numbers", _divisible),
    "square": Operator(torch.square, 1, "numbers"), "relu": Operator(torch.relu, 1, "numbers", unsigned=True),
    "floor": Operator(torch.floor, 1, "numbers"), "ceil": Operator(torch.ceil, 1, "numbers"),
    "trunc": Operator(torch.trunc, 1, "numbers"), "round": Operator(torch.round, 1, "numbers"),
    "pow": Operator(torch.pow, 2, "numbers", _not_negative),
}  # fmt: skip
_BITS = {
    "floordiv": Operator(_floored, 2, "whole", _divisible),
    "truncdiv": Operator(_truncated, 2, "whole", _quotient_fits),
    "and_": Operator(torch.bitwise_and, 2, "bits"), "or_": Operator(torch.bitwise_or, 2, "bits"),
    "xor": Operator(torch.bitwise_xor, 2, "bits"), "bitwise_and": Operator(torch.bitwise_and, 2, "bits"),
    "bitwise_or": Operator(torch.bitwise_or, 2, "bits"), "bitwise_xor": Operator(torch.bitwise_xor, 2, "bits"),
    "bitwise_not": Operator(torch.bitwise_not, 1, "bits"), "invert": Operator(torch.bitwise_not, 1, "bits"),
    "bitwise_left_shift": Operator(torch.bitwise_left_shift, 2, "whole"),
    "bitwise_right_shift": Operator(torch.bitwise_right_shift, 2, "whole"),
}  # fmt: skip
_SPECIAL = {
    "airy_ai": Operator(special.airy_ai), "bessel_j0": Operator(special.bessel_j0),
    "bessel_j1": Operator(special.bessel_j1), "bessel_y0": Operator(special.bessel_y0),
    "bessel_y1": Operator(special.bessel_y1), "digamma": Operator(special.digamma),
    "erfcx": Operator(special.erfcx, roundings=16), "erfinv": Operator(special.erfinv), "i0": Operator(special.i0),
    "i0e": Operator(special.i0e), "i1": Operator(special.i1), "i1e": Operator(special.i1e),
    "log_ndtr": Operator(special.log_ndtr), "modified_bessel_i0": Operator(special.modified_bessel_i0),
    "modified_bessel_i1": Operator(special.modified_bessel_i1),
    "modified_bessel_k0": Operator(special.modified_bessel_k0),
    "modified_bessel_k1": Operator(special.modified_bessel_k1),
    "ndtri": Operator(special.ndtri),
    "scaled_modified_bessel_k0": Operator(special.scaled_modified_bessel_k0),
    "scaled_modified_bessel_k1": Operator(special.scaled_modified_bessel_k1),
    "spherical_bessel_j0": Operator(special.spherical_bessel_j0),
    "gammainc": Operator(special.gammainc, 2, roundings=256),
    "gammaincc": Operator(special.gammaincc, 2, roundings=256), "igamma": Operator(torch.igamma, 2, roundings=256),
    "igammac": Operator(torch.igammac, 2, roundings=256), "nextafter": Operator(torch.nextafter, 2),
    "zeta": Operator(special.zeta, 2),
}  # fmt: skip
TABLE = {**_SPECIAL, **_FLOATS, **_ANY, **_NUMBERS, **_BITS}
"""By its name in the loop IR."""
STRUCTURE = (
    "check_bounds", "constant", "identity", "index_expr", "indirect_indexing", "load", "masked", "output",
    "placeholder", "reduction", "scan", "sort", "store", "store_reduction", "to_dtype", "value_expr",
)  # fmt: skip
"""What makes loops and reads of them, and computes nothing."""
REFUSED: dict[str, tuple[int, tuple[object, ...]]] = {
    **dict.fromkeys(("ceil_to_int", "floor_to_int", "round_to_int", "trunc_to_int"), (1, (torch.int64,))),
    **dict.fromkeys(("frexp", "inline_asm_elementwise", "load_seed", "ndtr"), (1, ())),
    **dict.fromkeys(("dot", "int_truediv", "ldexp", "lshift", "rshift", "polygamma", "rand", "rand_eager"), (2, ())),
    **dict.fromkeys(("bucketize", "randint64", "randn"), (2, ())),
    "device_assert_async": (1, ("message",)),
    "halide_clamp": (1, (8, True)),
    "partial_accumulate": (0, ("name", "sum", 1, {})),
    "to_dtype_bitcast": (1, (torch.float32, torch.int32)),  # the bits of a float32 have places alone
    **dict.fromkeys(
        (
            "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
            "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
            "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
            "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
        ),
        (2, ()),
    ),
}  # fmt: skip
"""What no kernel of ours does, with how many operands it takes, and what comes behind them."""
