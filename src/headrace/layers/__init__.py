"""The parts that model families share. Each takes `ops` and `comm`; none keeps anything global."""
