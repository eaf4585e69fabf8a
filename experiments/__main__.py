"""Run ``python -m experiments NAME`` from the root folder of the repository."""

import sys

from experiments.command import main

if __name__ == "__main__":
    sys.exit(main())
