"""Defines the protocols of devices and the code that all devices share; each device has a folder."""
