"""Errors that tell a user what to do."""


class UserError(ValueError):
    """A mistake that the user can mend: the message says what was expected, what came, the remedy.

    Every other error is a fault of mufield's own and is shown as one.
    """
