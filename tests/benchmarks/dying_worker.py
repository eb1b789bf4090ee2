"""A worker of the conformance run that does to itself what each case's name says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


for line in sys.stdin:
    for name in json.loads(line)["cases"]:
        deed, stage, _ = name.split("|")
        say({"begins": [name, stage]})
        if deed == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if deed == "leaves":
            sys.exit(3)
        if deed == "sleeps":
            time.sleep(600)
        say({"row": {"case": name, "outcome": "covered", "why": "", "parts": []}})
        if deed == "falls":
            os.kill(os.getpid(), signal.SIGABRT)
    say({"done": True})
