"""Signals, and the processes that work together."""
