"""Runs models on WebGPU in a page: decode steps come from a tape, and the GPU samples."""
