"""Decodes and resamples sound for speech models, and computes its spectra."""
