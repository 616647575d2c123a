"""The search for copies and doubtful labels in a data set."""
