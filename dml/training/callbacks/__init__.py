"""Lightning callbacks, and functions that make one or return None if its option is off."""
