"""What a run stores of its configuration and data, and how a later command continues from it."""
