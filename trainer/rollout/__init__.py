"""Episodes of a model in a world, many at once, as the trainer learns from them."""
