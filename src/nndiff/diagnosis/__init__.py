"""Where two recordings part, and who is to blame: first divergence, call graph, gradients, noise."""
