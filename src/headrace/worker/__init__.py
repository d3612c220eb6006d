"""From plan to result: persistent rows, flat inputs, the model, the draws."""
