"""Trains, tests once, and shows the result: ``python train.py loss=rll dataset=emoji``; ``--help`` lists the groups."""

from dml.run import main

if __name__ == "__main__":
    main("train")
