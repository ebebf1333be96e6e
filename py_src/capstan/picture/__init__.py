"""Decodes, resizes and normalizes pictures for vision models. Needs numpy and Pillow."""
