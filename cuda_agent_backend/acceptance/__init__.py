"""Whole-graph acceptance: the decision, and the measurements behind it."""
