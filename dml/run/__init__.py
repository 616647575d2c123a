"""Composes configurations into objects, and runs jobs and sweeps.

Importing it registers the resolvers that configurations call.
"""

from dml.run import config_folders, sweeps

__all__ = ["config_folders", "sweeps"]
