"""Regions of a post-grad graph: which are offered, with what, and how a kernel takes a region's place."""
