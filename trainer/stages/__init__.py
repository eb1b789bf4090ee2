"""The stages of training as commands that resume and chain."""
