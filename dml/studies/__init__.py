"""Studies: trainings that are compared, in the papers' tables and on a page of this project."""
