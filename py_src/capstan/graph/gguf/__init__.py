"""Writes graphs for GGUF files: ONNX as onnxruntime-genai's model builder writes it, with the file's own bytes as
weights.
"""
