"""Losses compared by cross-validation, with one look at the test classes."""
