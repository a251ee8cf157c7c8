"""``python -m profforce`` is ``profforce``."""

import sys

from profforce.app import main

if __name__ == "__main__":
    sys.exit(main())
