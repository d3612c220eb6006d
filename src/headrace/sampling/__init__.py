"""From logits to tokens: what each row asks for, and in which order the ops are called."""
