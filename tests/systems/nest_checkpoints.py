"""The port of NEST, as an implementation that reads and writes NeMo's checkpoints, and faults in how it does.

Inside it has names of its own; its state dict has NeMo's.
"""

from __future__ import annotations

import io
import re
import tarfile

import nest_port
import torch

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"


class Port(nest_port.Nest):
    """Translate names where state dicts are made and taken."""

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        return {self.nemo_names[name]: value for name, value in state.items()} if self.nemo_names else state

    def load_state_dict(self, state, strict=True):
        self.nemo_names = {port_name(name): name for name in state}
        return super().load_state_dict({port_name(name): value for name, value in state.items()}, strict)

    def __init__(self):
        super().__init__()
        self.nemo_names = {}


def port_name(name):
    for pattern, new in nest_port.NEST_NAMES:
        name = re.sub(pattern, new, name)
    return name


def load(path):
    """Return the port with the weights of a .nemo archive or a Lightning checkpoint; it keeps the config for saving."""
    port = Port()
    port.config = b""
    if path.endswith(".nemo"):
        with tarfile.open(path) as archive:
            members = {name.removeprefix("./"): name for name in archive.getnames()}
            port.config = archive.extractfile(members[CONFIG]).read()
            weights = archive.extractfile(members[WEIGHTS]).read()
        state = torch.load(io.BytesIO(weights), weights_only=True)
    else:
        state = torch.load(path, weights_only=True)["state_dict"]
    port.load_state_dict(state)
    return port.eval()


def save(model, path):
    """Write the kind of file that was read."""
    if not path.endswith(".nemo"):
        torch.save({"state_dict": model.state_dict()}, path)
        return
    weights = io.BytesIO()
    torch.save(model.state_dict(), weights)
    with tarfile.open(path, "w") as archive:
        for name, content in ((CONFIG, model.config), (WEIGHTS, weights.getvalue())):
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def load_transposed(path):
    """Return the port with one square weight transposed: every shape still fits."""
    port = load(path)
    with torch.no_grad():
        weight = port.blocks[0].att.q_proj.weight
        weight.copy_(weight.T.clone())
    return port


def load_wrong_eps(path):
    """Return a port that holds every weight and computes something else."""
    port = load(path)
    port.blocks[0].norm_out.eps = 1e-3
    return port
