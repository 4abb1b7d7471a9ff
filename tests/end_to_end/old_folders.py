"""Folders as older scripts write them, in each of their styles, of models whose faults are known."""

from __future__ import annotations

import pickle

import torch
from torch import nn

INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def old_script(model, folder, form):
    """Save what a model did the way the scripts do: with hooks that overwrite, pickled as it comes."""
    forward, backward = {}, {}
    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(lambda m, i, out, name=name: forward.__setitem__(name, out.detach().clone()))
            module.register_forward_hook(
                lambda m, i, out, name=name: (
                    out.register_hook(lambda grad, name=name: backward.__setitem__(name, grad.clone())) and None
                )
            )
    output = model(INPUT)
    output.pow(2).sum().backward()
    folder.mkdir()
    torch.save({"audio_signal": INPUT}, folder / "input_data.pt")
    torch.save(output.detach(), folder / "forward_output.pt")
    torch.save({name: value.grad for name, value in model.named_parameters()}, folder / "parameter_gradients.pt")
    hooks = {"forward": forward, "backward": backward}
    if form == "by layer":
        hooks = {name: {"forward": forward[name], "backward": backward[name]} for name in forward}
    (folder / "hook_data.pkl").write_bytes(pickle.dumps(hooks))
    (folder / "metadata.pkl").write_bytes(pickle.dumps({"seed": 42, "batch_size": 3}))
    return folder


class Block(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm, self.fc, self.act = nn.LayerNorm(6, eps=eps), nn.Linear(6, 6), nn.GELU()

    def forward(self, x):
        return x + self.act(self.fc(self.norm(x)))


class Speech(nn.Module):
    """A model whose second block has another eps where it is broken."""

    def __init__(self, eps=1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList([Block(1e-5), Block(eps)])

    def forward(self, audio_signal, audio_length=None):
        x = self.stem(audio_signal)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


LENGTH = torch.tensor([4, 4, 4])
SETTINGS = {"seed": 7, "batch_size": 3, "seq_len": 4}
WORDS = ("forward_inputs", "forward_outputs", "backward_input_grads", "backward_output_grads")


def copied(value):
    return [each.clone() if each is not None else None for each in value] if isinstance(value, tuple) else value.clone()


def public_script(model, folder, spoil="", words=WORDS, by="module"):
    """Save what a model did by full backward hooks, each call over the one before; one gradient may be spoiled."""
    held = {}
    for name, module in model.named_modules():
        if name:
            held[name] = dict.fromkeys(words)
            module.register_forward_hook(
                lambda m, given, out, name=name: held[name].update(
                    {words[0]: copied(tuple(x.detach() for x in given)), words[1]: copied(out.detach())}
                )
            )
            module.register_full_backward_hook(
                lambda m, at_inputs, at_outputs, name=name: held[name].update(
                    {words[2]: copied(at_inputs), words[3]: copied(at_outputs)}
                )
            )
    output = model(INPUT)
    output.mean().backward()
    if spoil:
        held[spoil][words[3]][0] *= 1.5
    if by == "direction":
        held = {word: {name: each[word] for name, each in held.items()} for word in words}
    folder.mkdir()
    torch.save({"audio_signal": INPUT, "audio_length": LENGTH, **SETTINGS}, folder / "input_data.pt")
    torch.save(output.detach(), folder / "forward_output.pt")
    torch.save({name: each.grad for name, each in model.named_parameters()}, folder / "parameter_gradients.pt")
    (folder / "hook_data.pkl").write_bytes(pickle.dumps(held))
    told = {**SETTINGS, "ckpt_path": "x.nemo", "num_modules": len(held), "module_names": list(held)}
    (folder / "metadata.pkl").write_bytes(pickle.dumps(told))
    return folder


def in_tuples(folder, style):
    """Write a folder of the public script in another style, its gradients as the tuples that hooks are handed."""
    held = pickle.loads((folder / "hook_data.pkl").read_bytes())
    forward = {name: each["forward_outputs"] for name, each in held.items()}
    backward = {name: tuple(each["backward_output_grads"] or ()) for name, each in held.items()}
    told = {"forward_outputs": forward, "backward_gradients": backward}
    if style == "by layer":
        told = {name: {"forward": forward[name], "backward": backward[name]} for name in forward}
    (folder / "hook_data.pkl").write_bytes(pickle.dumps(told))
    return folder
