"""Handles text around the tokens: chat templates, a tokenizer's regular expressions, decoding of ids."""
