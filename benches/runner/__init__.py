"""The bench: what it measures (plan), how it runs (run, server) and what it makes of it (results, text, report).

Standard library only: a GPU host may have nothing else.
"""
