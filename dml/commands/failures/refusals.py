"""Which exceptions of a ``_target_`` are its refusal of an argument, and which are bugs."""

import dis
import re

CALLED_TARGET = re.compile(r"Error in call to target '([^']+)'")
"""How Hydra names the class or function that raised an exception."""

RAISE = dis.opmap["RAISE_VARARGS"]


def is_refusal(error: BaseException, target: str) -> bool:
    """Return whether a class or function refused its arguments, as opposed to a failure in something that it uses.

    It refuses them if a ``raise`` of its package raised a ValueError. dml's parts raise `InputError` for that, and
    Lightning has an exception for its users' mistakes.

    Args:
        error: exception that Hydra or Lightning raised.
        target: dotted name of the class or function.
    """
    if type(error).__name__ == "MisconfigurationException":
        return True
    package = target.partition(".")[0]
    if not isinstance(error, ValueError) or isinstance(error, UnicodeError) or package == "dml":
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code.co_code[last.tb_lasti] != RAISE:
        return False
    return str(last.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == package
