"""Matrix products with few terms: a tile of results for each thread in registers."""
