"""What a command prints and returns when it fails."""
