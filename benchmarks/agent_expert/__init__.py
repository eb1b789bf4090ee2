"""A scripted expert: hand-written CUDA and Triton, played through the agent's tools as a policy would. See `__main__`."""
