"""The tests of a run: before the training, and with the weights that it chose."""
