"""The commands that people use, and what drives pages from CPython for them. It runs on CPython alone.

The modules that commands import before their environment exists need the standard library only.
"""
