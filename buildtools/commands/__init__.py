"""The commands of `build.py` that build and test, one module each.

A module has `add_arguments(parser)`, `check(args)` (what can be refused before any set-up), `run(args)` and `GROUP`,
the requirements that it needs in .venv; `run` alone may import packages from there.
"""
