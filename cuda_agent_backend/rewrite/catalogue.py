"""All rules, in the order in which they are tried: those that tidy up first."""

from __future__ import annotations

from cuda_agent_backend.rewrite.rule import Rule
from cuda_agent_backend.rewrite.rules import (
    diagonal_of_product,
    diagonal_product,
    identities,
    layouts,
    merged_channels,
    merged_clamps,
    merged_scales,
    merged_sums,
    product_order,
    scale_of_product,
    scaled_softmax,
    single_elements,
    sum_of_convolution,
    sum_of_pooling,
    sum_of_product,
)

RULES: tuple[Rule, ...] = (
    layouts.RULE,
    scaled_softmax.RULE,
    single_elements.RULE,
    identities.RULE,
    merged_clamps.RULE,
    merged_scales.RULE,
    merged_channels.RULE,
    scale_of_product.RULE,
    diagonal_product.RULE,
    product_order.RULE,
    diagonal_of_product.RULE,
    sum_of_pooling.RULE,
    merged_sums.RULE,
    sum_of_product.RULE,
    sum_of_convolution.RULE,
)
