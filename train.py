"""Trains, tests once, and shows the result: ``python train.py loss=rll dataset=emoji``; ``--help`` lists the groups."""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()
    from dml.commands import main  # after that: it takes seconds

    main("train")
