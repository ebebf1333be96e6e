"""Makes tapes of runs on this device, and compares each with eager runs before it is trusted.

`tape_making` has the steps that all kinds share, `comparison` the one table of tolerances. The kinds are decode steps
(`step_recorder`), prompt runs (`prefill_tapes`), steps of several rows (`row_tapes`, `beam_tapes`), of several
positions (`draft_tapes`) and of any tokens (`pack_tapes`), and sessions of any model (`session_tapes`).
"""
