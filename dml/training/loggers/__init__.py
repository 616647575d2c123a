"""Loggers of a training, and what a finished run logs."""
