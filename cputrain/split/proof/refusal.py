"""The error that says why a model is not split over replicas."""


class CannotSplitError(Exception):
    """The model cannot be split; the message is the reason, as half a sentence."""
