"""Checks for apps that embed Capstan: their answers against an oracle, their speed against a baseline."""
