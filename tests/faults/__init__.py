"""Attacks on Capstan by bad input: mutations of good input, what is tried with each, and what came of it."""
