"""Measures the power of the tests: seeded faults, each of which some test has to find; `build.py test --mutations`."""
