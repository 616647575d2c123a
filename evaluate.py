"""Tests a checkpoint again, on its own data set or another: ``python evaluate.py checkpoint=outputs/.../best.ckpt``."""

from dml.run import main

if __name__ == "__main__":
    main("evaluate")
