"""Errors, configurations, files, run folders, text, libraries, signals and processes, which every room uses."""
