"""Arguments that several commands take."""

from __future__ import annotations

import argparse
import re


def part(text: str) -> tuple[int, int]:
    """``2/8`` as its two numbers, for the second of eight parts. Raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, of = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= of:
        raise argparse.ArgumentTypeError(f"{text!r} is not such as 2/8")
    return number, of
