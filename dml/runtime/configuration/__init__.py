"""Values of configurations: dotted keys, overrides, and the objects that may be named."""
