"""Torch's operator database against forced kernels: is any wrong, does any not compile, does any crash?"""
