"""Weights: fetched in shards, verified, kept in the browser's storage, shared by everything on the page."""
