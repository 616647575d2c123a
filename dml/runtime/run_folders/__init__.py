"""The folders of runs."""
