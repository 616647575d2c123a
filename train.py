"""Trains, tests once, and shows the result: ``python train.py loss=rll dataset=emoji``; ``--help`` lists the groups."""

from dml.ops.process.signals import handle_signals

if __name__ == "__main__":
    handle_signals(is_importing=True)
    from dml.commands import main  # after that: it takes seconds

    main("train")
