"""Where plans are run: in this thread, later on several ranks."""
