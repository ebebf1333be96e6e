"""The commands that people use, one module each.

A module has `add_arguments(parser)`, `check(args)` (what can be refused before any set-up), `run(args)` and `GROUP`,
the requirements that it needs; `run` alone may import packages from outside the standard library.
"""
