"""``python -m cuda_agent_backend``: the same as the command ``cuda-agent``."""

import sys

from cuda_agent_backend.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
