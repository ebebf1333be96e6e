"""Makes tapes of runs on this device, and compares each with eager runs before it is trusted.

`pipeline` has the steps that all share, `comparison` the one table of tolerances. Their callers are decode steps
(`step_recorder`), prompt runs (`prefill`), steps of several rows (`rows`) and positions (`drafts`), and sessions of any
model (`sessions`).
"""
