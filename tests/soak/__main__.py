"""`python -m tests.soak`, which `build.py test --soak` starts."""

import sys

from .main import main

sys.exit(main(sys.argv[1:]))
