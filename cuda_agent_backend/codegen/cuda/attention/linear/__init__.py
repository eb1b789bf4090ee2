"""Back-to-back GEMMs with pointwise work between, as attention without softmax."""
