"""Composes configurations into objects, and runs jobs and sweeps.

Importing it registers the resolvers that configurations call.
"""

from dml.run import group_help, resolvers

__all__ = ["group_help", "resolvers"]
