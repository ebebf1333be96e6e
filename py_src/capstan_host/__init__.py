"""Holds the commands that people use, and the code that drives pages for them. It runs only on CPython.

The modules that commands import before their environment exists need only the standard library.
"""
