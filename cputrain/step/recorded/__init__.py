"""The loop of a script as it stands: forward and backward are recorded, and then compiled."""
