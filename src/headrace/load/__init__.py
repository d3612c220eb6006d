"""From a name or a path to a configuration, weights and a tokenizer. Code that a checkpoint brings is never run."""
