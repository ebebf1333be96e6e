"""The bench: what it measures (plan), how it runs (run, server) and what it makes of it (results, text, report).

Standard library only: a GPU host may have nothing else.
"""

import sys
from pathlib import Path

SOURCES = str(Path(__file__).resolve().parents[2] / "py_src")
"""The folder of `capstan` and `capstan_host`, in a checkout and in a pack."""
if SOURCES not in sys.path:
    sys.path.insert(0, SOURCES)
