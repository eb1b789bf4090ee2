"""Changes of loop nests before code is written: loop order, splits, unrolling, hoisting."""
