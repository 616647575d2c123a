"""What a data set holds, which of its images can't be read or stand twice, and what has changed."""
