"""Why a model is not divided."""


class CannotSplitError(Exception):
    """Why a model is left as it is, as half a sentence."""
