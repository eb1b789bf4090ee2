"""Inputs, the float64 oracle, and whether a result is as accurate as eager's."""
