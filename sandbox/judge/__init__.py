"""The judge of candidates: whether they are right, and whether they are faster. `judge.Judge` is the way in."""

from sandbox.judge.judge import Judge

__all__ = ["Judge"]
