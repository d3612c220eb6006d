"""Who runs when, and on which blocks: no torch, no numpy, so that it runs and is fuzzed in seconds."""
