"""Tapes of this device: recorded, rewritten, made, and trusted only after they did what eager runs do.

`pipeline` has the steps that all share, `comparison` the one table of tolerances. Their callers are decode steps
(`step_recorder`), prompt runs (`prefill`), steps of several rows (`rows`) and positions (`drafts`), and sessions of any
model (`sessions`).
"""
