"""The arena: rivals on tables that they have not seen, by one protocol."""
