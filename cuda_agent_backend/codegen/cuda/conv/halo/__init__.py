"""Convolutions that bring each input tile with its halo to shared memory once."""
