class InputError(ValueError):
    """What the user gave is wrong: the message is one line that names the thing, the value and what would be right.

    The command line prints that line and exits with code 2; any other exception is a bug and keeps its trace.
    """
