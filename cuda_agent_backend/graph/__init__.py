"""Facts about post-grad graphs, and edits of them: canonical form, strides, layouts, origins, shapes of operators."""
