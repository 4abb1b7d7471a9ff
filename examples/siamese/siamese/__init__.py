"""A siamese network that says which of two photos of one scene is better."""
