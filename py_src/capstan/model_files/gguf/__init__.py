"""Reads a GGUF file as a model: its header, its configuration and its tokenizer."""
