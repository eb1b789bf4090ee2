"""compute-sanitizer on a candidate that is about to be promoted."""
