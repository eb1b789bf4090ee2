"""How the pass asks for its compilation to begin anew."""


class Restart(BaseException):
    """Compile anew: what this compilation has found out is in the keys of torch's caches now, but not in the key that
    it goes by itself, so that no later process would find its code.

    Not an `Exception`: nothing on the way may take it for a fault.
    """
