"""The arithmetic: op signatures in `base`, one package per backend."""
