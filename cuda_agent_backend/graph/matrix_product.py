"""Matrix products of post-grad graphs, read off their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from cuda_agent_backend.graph.edit import argument, is_float, name_of, number

WITHOUT_ADDEND, WITH_ADDEND = ("mm", "bmm"), ("addmm", "baddbmm")
PRODUCTS = WITHOUT_ADDEND + WITH_ADDEND
PRODUCT_TYPES = {
    "cpu": (torch.float32,),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}
"""Of matrix products and convolutions for which there are sketches, by target."""


@dataclass(frozen=True)
class MatrixProduct:
    """``beta * addend + alpha * left @ right``; no addend where it is not even read."""

    left: Node
    right: Node
    addend: Node | None
    beta: float
    alpha: float


def matrix_product(node: Any) -> MatrixProduct | None:
    """The floating-point matrix product that a node is, with finite factors."""
    name = name_of(node)
    if name not in PRODUCTS or not is_float(node):
        return None
    addend, beta, alpha = None, 1.0, 1.0
    if name in WITHOUT_ADDEND:
        left, right = argument(node, "self"), argument(node, "mat2")
    else:
        second = "batch" if name == "baddbmm" else "mat"
        left, right = argument(node, f"{second}1"), argument(node, f"{second}2")
        beta, alpha = number(argument(node, "beta")), number(argument(node, "alpha"))  # type: ignore[assignment]
        addend = argument(node, "self") if beta else None
    if beta is None or alpha is None or not is_float(left) or not is_float(right):
        return None
    return MatrixProduct(left, right, addend, beta, alpha)
