"""The school: makes the policy that writes kernels.

Training tasks are synthesised, then the policy is trained in stages against the sandbox's verdicts. This package may
use everything below it; nothing below knows of it.
"""
