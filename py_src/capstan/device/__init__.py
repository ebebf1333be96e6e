"""Defines the protocols of devices and the code that all share; each device has a folder."""
