"""What decides the numbers besides the model: seeds, modes, dropout and torch settings."""
