"""Between the users and the step loop: checking what comes in, running steps, turning events into outputs."""
