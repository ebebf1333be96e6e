"""Loads a model from its folder: finds it, opens it, checks whether it fits."""
