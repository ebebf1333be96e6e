"""Loads a model from its folder: finds it, opens it, tells whether it fits."""
