"""Graphs of GGUF files: ONNX as onnxruntime-genai's model builder writes it, over the file's own bytes."""
