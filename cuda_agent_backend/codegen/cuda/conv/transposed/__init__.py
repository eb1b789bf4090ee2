"""Strided transposed convolutions by sub-pixel phases."""
