"""What each loss loses by wrong labels and long tails."""
