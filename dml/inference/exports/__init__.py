"""The export of a model to a file that runs without dml, and its comparison with the model."""
