"""Tests a checkpoint again, on its own data set or another: ``python evaluate.py checkpoint=outputs/.../best.ckpt``."""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()
    from dml.commands import main  # after that: it takes seconds

    main("evaluate")
