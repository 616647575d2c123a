"""Metrics in what a run prints: their names, labels and tables."""
