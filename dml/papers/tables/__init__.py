"""The reproduction of the papers' tables."""
