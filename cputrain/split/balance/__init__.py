"""How many replicas there are, and how many samples each device or rank gets."""
