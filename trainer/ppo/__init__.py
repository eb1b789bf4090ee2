"""Learning from episodes: advantages, losses, batches of conversations, and one update. Knows nothing of kernels."""
