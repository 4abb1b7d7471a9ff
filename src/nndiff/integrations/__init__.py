"""nndiff inside other tools: callbacks that record a training."""
