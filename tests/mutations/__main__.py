"""`python -m tests.mutations`, which build.py test --mutations runs."""

import sys

from tests.mutations.main import main

sys.exit(main(sys.argv[1:]))
