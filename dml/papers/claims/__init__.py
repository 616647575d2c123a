"""The papers' claims, tested in a small setting."""
