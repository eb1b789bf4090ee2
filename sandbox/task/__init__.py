"""Tasks: regions of a graph in canonical form, which any process can rebuild and run."""
