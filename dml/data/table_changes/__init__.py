"""Changes of a data set's table that leave its files alone."""
