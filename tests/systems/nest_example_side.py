"""NeMo's side of examples/nest, once per test session: `python nest_example_side.py OUT` leaves its runs in OUT."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import torch
from nemo.collections.asr.models import EncDecDenoiseMaskedTokenPredModel
from nest_example_cases import CASES, EXAMPLE, FIXTURES, read_screens, record_case, train
from omegaconf import OmegaConf

sys.path.insert(0, str(EXAMPLE))
import nest_ssl

from nndiff.commands import main as nndiff_main
from nndiff.models.nemo import build_nemo_model
from nndiff.models.spec import BuildOptions

OUT = Path(sys.argv[1])


def restore(name):
    return build_nemo_model(str(OUT / name), BuildOptions()).model


def build(config, name):
    """Build a model of a config with weights from a seed, none of them zero, and save it."""
    torch.manual_seed(0)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.create(config), trainer=None)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    model.save_to(str(OUT / name))


def make_checkpoints():
    """Leave the tiny model, two more that use other options of NeMo, the Large one, and one that was trained."""
    shutil.copy(FIXTURES / "tiny_nest.nemo", OUT / "tiny.nemo")
    shutil.copy(FIXTURES / "tiny_nest_pl.ckpt", OUT / "tiny.ckpt")
    tiny, _ = nest_ssl.checkpoint.read_archive(OUT / "tiny.nemo")
    two_books = copy.deepcopy(tiny)
    two_books["num_books"] = two_books["quantizer"]["num_books"] = 2
    two_books["decoder"]["num_decoders"] = two_books["loss"]["num_decoders"] = 2
    two_books["masking"].update(allow_overlap=False, mask_prob=0.5, block_size=24)
    two_books["encoder"].update(xscaling=False, use_bias=False, dropout_emb=0.1, subsampling_factor=4)
    two_books["quantizer"]["combine_time_steps"] = two_books["loss"]["combine_time_steps"] = 4
    two_books["preprocessor"].update(window="hamming", pad_to=8, lowfreq=40, highfreq=7600)
    build(two_books, "two_books.nemo")
    squeezed = copy.deepcopy(tiny)
    for section in (squeezed, squeezed["quantizer"], squeezed["decoder"], squeezed["loss"]):
        section["squeeze_single"] = True
    squeezed["masking"]["mask_value"] = 0.5
    build(squeezed, "squeezed.nemo")
    build(nest_ssl.read_config(EXAMPLE / "config/nest_fast-conformer.yaml"), "large.nemo")
    model = restore("tiny.nemo")
    train(model, OUT / "training")
    model.save_to(str(OUT / "trained.nemo"))


def restore_what_the_port_saves():
    """Return how many tensors NeMo gets back unchanged from each kind of file that the port writes."""
    port = nest_ssl.load(OUT / "trained.nemo")
    expected = restore("trained.nemo").state_dict()
    counts = {}
    for suffix in (".nemo", ".ckpt"):
        nest_ssl.save(port, OUT / f"by_port{suffix}")
    config = OmegaConf.create(port.config)  # the checkpoint holds it too, as plain values, which NeMo refuses
    nemo = EncDecDenoiseMaskedTokenPredModel
    restored = {
        ".nemo": nemo.restore_from(str(OUT / "by_port.nemo"), map_location="cpu"),
        ".ckpt": nemo.load_from_checkpoint(str(OUT / "by_port.ckpt"), map_location="cpu", cfg=config),
    }
    for suffix, model in restored.items():
        state = model.state_dict()
        assert list(state) == list(expected)
        counts[suffix] = sum(torch.equal(state[name], expected[name]) for name in expected)
    return counts


def run_commands():
    """Run what the README says to run in NeMo's environment, and two more, where there is a copy of the example."""
    shutil.copytree(EXAMPLE, OUT / "example")
    shutil.copy(OUT / "tiny.nemo", OUT / "example/model.nemo")
    sys.path.insert(0, str(OUT / "example/tools"))
    commands = [command for shell, command, _ in read_screens() if shell == "nemo"]
    apart = "--ckpt_path model.nemo --nemo_ckpt_path ../trained.nemo"
    commands.append(f"python tools/compare_intermediate_outputs.py {apart}")
    with contextlib.chdir(OUT / "example"):
        return {command: run_command(command) for command in commands}


def run_command(command):
    """Run a command as the shell would; return its status and what it wrote to stdout."""
    program, *words = shlex.split(command)
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        try:
            if program == "nndiff":
                status = nndiff_main(words)
            else:
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as error:
            status = error.code
    return {"status": status, "stdout": stdout.getvalue()}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    make_checkpoints()
    for case in CASES:
        record_case(restore(case.checkpoint), case, OUT)
    facts = {"restored": restore_what_the_port_saves(), "commands": run_commands()}
    (OUT / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
