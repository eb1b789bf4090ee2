"""Training tasks by synthesis: seeds, composition, filters and the data set that comes of them."""
