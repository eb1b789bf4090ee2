"""Pointwise kernels that gather along channels whose elements lie apart in memory."""
