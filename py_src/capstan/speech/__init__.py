"""Turns speech into text with models that hear: prompts, rules for timestamps, windows over long sounds."""
