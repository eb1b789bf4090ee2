"""One rule to a file: the identity, when it holds, and how it is put into effect."""
