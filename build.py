#!/usr/bin/env python3
"""The one entry to this repository: `python3 build.py --help` lists its commands.

Needs Python 3.11 or newer with venv, and Node 18 or newer; everything else is installed into the checkout.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  (the line is for those who have an older one)
    sys.exit(
        f"error: Python {sys.version.split()[0]} found, 3.11 or newer is needed: run build.py with a newer python3"
    )

from buildtools.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
