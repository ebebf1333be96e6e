"""Runs models on onnxruntime-web's CPU execution provider in a page."""
