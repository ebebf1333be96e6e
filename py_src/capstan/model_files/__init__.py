"""Reads a model's files: configuration, names, hubs, JSON. `loading` opens the model that they describe."""
