"""The jobs that look at a data set: ``dml inspect``, ``dml audit`` and ``dml shift``."""
