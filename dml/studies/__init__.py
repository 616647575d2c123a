"""Studies: trainings that are compared, in the papers' tables and figures and on the pages of this project."""
