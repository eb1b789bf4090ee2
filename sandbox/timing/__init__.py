"""Clocks, samples, the decision on them, the roofline, and turns on the device."""
