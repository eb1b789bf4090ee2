"""The models that are trained: made from a configuration, and how much memory their training takes."""
