"""What ``dml prepare`` makes: the results of a verification, and a cache of decoded images."""
