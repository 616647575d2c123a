"""Data sets: the table of images, the batches of a training, and transforms."""
