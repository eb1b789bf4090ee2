"""Loading compiled candidates and running them behind a few torch operators."""
