"""One file per model family, read as prose; `registry` finds the family of a checkpoint."""
