"""The only code that imports `js` or `pyodide`: what JavaScript gives to Python, with typed errors."""

from __future__ import annotations

from .own_host import provide_host

provide_host()
