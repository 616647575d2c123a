"""Signals, the end of processes, and settings of the whole process."""
