"""CPython, where the reference device computes: the host, and what is put together for it."""
