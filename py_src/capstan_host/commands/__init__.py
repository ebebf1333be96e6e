"""The commands that people use, one module each.

A module has `add_arguments(parser)`, `check(args)` (refuses invalid arguments before any set-up), `run(args)` and
`GROUP`, the requirements that it needs. Only `run` may import packages from outside the standard library.
"""
