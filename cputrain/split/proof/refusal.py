"""The error that says why a model is not split over replicas."""


class CannotSplitError(Exception):
    """The model cannot be split; the message is the reason, as half a sentence."""


UNDIVIDED_DRAW = (
    "draws random numbers in a way that cannot be divided (torch.multinomial does, for example)"
)
"""Why, where an operator draws for the whole batch at once."""
