"""One environment for whoever trains: episodes in a world, driven from outside, in the shapes that others take."""
