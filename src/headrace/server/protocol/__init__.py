"""What clients may send, field by field; what the fields must be in numbers is the engine's to check."""
