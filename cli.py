"""Run profforce from a checkout: ``python cli.py train ...``."""

import sys

from profforce.app import main

if __name__ == "__main__":
    sys.exit(main())
