"""`python -m tests.faults`, which build.py test --faults runs."""

import sys

from tests.faults.main import main

sys.exit(main(sys.argv[1:]))
