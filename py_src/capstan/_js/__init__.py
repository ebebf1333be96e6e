"""The only code that imports `js` or `pyodide`: what JavaScript gives to Python, with typed errors."""
