"""Windows over contiguous images whose results are stored channels-last."""
