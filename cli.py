"""Run profforce from a checkout: ``python cli.py train ...``."""

import sys

from profforce.app import main

sys.exit(main())
