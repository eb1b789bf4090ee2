"""The data set: its journal, its rows, its file and its card."""
