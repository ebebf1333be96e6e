"""Implements the host of CPython, where the reference device computes, and its parts."""
