"""What comparisons of training runs and of modes found out, and their JSON; `result` holds them."""
