"""Scaled dot-product attention with an online softmax."""
