"""A scripted expert: hand-written CUDA and Triton, played through the agent's tools. See `__main__`."""
