"""The demo: small models with planted differences, and the commands that find them."""
