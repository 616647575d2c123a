"""The reproduction of the papers' figures."""
