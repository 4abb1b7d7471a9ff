"""NEST in plain PyTorch: NeMo's EncDecDenoiseMaskedTokenPredModel, with NeMo's parameter names and NeMo's bits."""

from nest_ssl.checkpoint import load, save
from nest_ssl.config import ConfigError, read_config
from nest_ssl.model import Nest

__all__ = ["ConfigError", "Nest", "load", "read_config", "save"]
