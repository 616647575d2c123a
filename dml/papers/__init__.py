"""The papers' tables, claims and figures, and comparisons of all losses."""
