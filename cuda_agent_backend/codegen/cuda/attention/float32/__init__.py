"""Attention in float32."""
