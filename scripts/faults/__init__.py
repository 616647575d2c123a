"""The rows of docs/reliability.md: faults that are made to happen to real commands."""
