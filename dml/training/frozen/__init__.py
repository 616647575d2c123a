"""Training of the heads alone, on what a frozen backbone computes once."""
