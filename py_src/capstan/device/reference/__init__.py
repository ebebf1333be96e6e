"""Runs models with onnxruntime on CPython, which defines what the other devices compute. It needs the extra
`reference`.
"""
