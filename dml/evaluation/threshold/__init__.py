"""A threshold on the similarity, above which two images are judged to be of one class."""
