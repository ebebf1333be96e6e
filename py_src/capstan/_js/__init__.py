"""Calls JavaScript's functions for Python, with typed errors. No other code imports `js` or `pyodide`."""
