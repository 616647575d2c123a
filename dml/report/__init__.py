"""The reports: what turns metrics and neighbors into tables, pictures and HTML pages."""
