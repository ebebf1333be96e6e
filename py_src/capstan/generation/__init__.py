"""Generates sequences: the generator, the loop that advances their rows, and the policies of the loop."""
