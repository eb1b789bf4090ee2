"""Scatters, with the producers of their values fused in."""
