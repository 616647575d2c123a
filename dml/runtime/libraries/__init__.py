"""Optional libraries, versions, and imports without what nothing uses."""
