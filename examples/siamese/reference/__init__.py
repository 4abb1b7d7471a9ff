"""The same ranker by somebody else: transformers' ResNet, other names, another loop."""
