"""Many modes of one model: what each does to the outputs, which layer is to blame, and what to keep."""
