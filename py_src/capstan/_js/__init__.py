"""The only code that imports `js` or `pyodide`: JavaScript's functions for Python, with typed errors."""
