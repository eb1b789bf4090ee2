"""Functions of the loop IR that few kernels have. They are in headers of their own, which other kernels do without.

On a processor they are torch's own scalar functions, as in Inductor's code. On a GPU they are those of CUDA's
mathematical library. Of the others Inductor leaves most to eager's own kernels there, and so do we; the library's
Bessel functions, which it calls, answer otherwise than eager for infinities.
Orthogonal polynomials are left out: of a NaN some of torch's return what was never written.
"""

from __future__ import annotations

PREFIX = "special_"
_ONE = (
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "digamma", "erfcx", "erfinv", "i0", "i0e", "i1",
    "i1e", "log_ndtr", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
    "ndtri", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0",
)  # fmt: skip
_TWO = ("gammainc", "gammaincc", "igamma", "igammac", "nextafter", "zeta")
NAMES = frozenset((*_ONE, *_TWO))
ON_CUDA = frozenset(["erfcx", "erfinv", "nextafter"])
FUNCTIONS = {name: PREFIX + name for name in sorted(NAMES)}
"""By name in the loop IR, what is printed."""
MARK = "CA_SPECIAL1"
"""In each of the headers."""
HEADERS = {"cpu": "cpu/special.h", "cuda": "cuda/common/special.cuh"}
