"""The launcher: what runs before the user's interpreter. Never imports torch.

Installed as cputrain.launch, because a top-level package called launch would collide with others.
"""
