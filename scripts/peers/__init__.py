"""The same training and evaluation by dml and by other libraries, each in its own environment."""
