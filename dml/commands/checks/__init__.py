"""Checks of a configuration before data is read or a model is built."""
