"""The `cputrain` command, which runs before the user's interpreter and never imports torch.

Installed as cputrain.launch, because a top-level package called launch would collide with others.
"""
