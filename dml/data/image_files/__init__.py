"""Image files in folders and archives, and their pixels."""
