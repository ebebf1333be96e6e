"""WebGPU in a page: decode steps from a tape, sampling on the GPU."""
