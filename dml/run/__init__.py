from dml.run.cli import main

__all__ = ["main"]
