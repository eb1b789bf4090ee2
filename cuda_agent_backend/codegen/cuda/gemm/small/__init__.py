"""Batches of small matrix products: several of them in a block's shared memory."""
