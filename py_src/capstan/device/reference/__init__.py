"""onnxruntime on CPython: the definition of what the other devices compute. Needs the extra `reference`."""
