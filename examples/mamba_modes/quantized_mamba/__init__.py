"""Mamba with quantised mixers, simulated on CPU: one mixer in FP32, its parts in int8, and the modes that mix them."""
