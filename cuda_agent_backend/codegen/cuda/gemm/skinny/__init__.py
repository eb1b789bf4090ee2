"""Matrix products with few columns: each thread adds up all columns of a few rows."""
