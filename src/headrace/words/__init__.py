"""The vocabulary every layer shares: values and errors, standard library only."""
