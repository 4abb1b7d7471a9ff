"""How a running model is recorded: hooks, tensors, state; needs torch."""
