"""The protocols of devices, what all of them share, and a folder for each device."""
