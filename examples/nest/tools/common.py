"""What the tools share: how they begin, how they end, and the two models."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for nest_ssl, wherever a tool is started

from nest_ssl import Nest, load

from nndiff.errors import NndiffError
from nndiff.models.nemo import MissingNemoError, build_nemo_model
from nndiff.models.spec import BuildOptions, ModelSpec
from nndiff.models.user_code import user_code
from nndiff.reports.output import silence_stdout

MODE: Literal["train"] = "train"  # in which gradients are compared: dither, dropout and batch statistics count


def run_tool(run: Callable[[Namespace], int], parser: ArgumentParser) -> int:
    """Run a tool; trouble is one sentence on stderr and exit status 2."""
    try:
        status = run(parser.parse_args())
        sys.stdout.flush()  # now, while it can still be noticed that the reader is gone
        return status
    except BrokenPipeError:  # `| head`
        silence_stdout()
        return 2
    except MissingNemoError as error:
        message = f"NeMo is not available. {error}"
    except NndiffError as error:
        message = str(error)
    print(f"{parser.prog}: {message}", file=sys.stderr)
    return 2


def add_input_options(parser: ArgumentParser) -> None:
    """Add what the test input is made from."""
    parser.add_argument("--seed", type=int, default=42, help="random seed (default: 42)")
    parser.add_argument("--batch_size", type=int, default=2, help="rows of the test input (default: 2)")
    parser.add_argument("--seq_len", type=int, default=16000, help="samples in each row (default: 16000)")


def add_tolerance_options(parser: ArgumentParser) -> None:
    """Add how far two numbers may be apart."""
    parser.add_argument("--atol", type=float, default=1e-5, help="absolute tolerance (default: 1e-5)")
    parser.add_argument("--rtol", type=float, default=1e-5, help="relative tolerance (default: 1e-5)")
    parser.add_argument("--config", help="config of the model, instead of the one in the checkpoint")


def load_local(path: str, config: str | None) -> Nest:
    """Return the port with the weights of a checkpoint."""
    with user_code(f"loading {path}"):
        return load(path, config)


def load_nemo(path: str, args: Namespace) -> ModelSpec:
    """Return NeMo's model with the weights of a checkpoint, the test input and the loss."""
    config = getattr(args, "config", None)
    return build_nemo_model(path, BuildOptions(args.seed, config, args.batch_size, args.seq_len))


def compute_loss(model: Nest, inputs: Any, output: Any) -> Any:
    """Return the loss of the port, as nndiff asks for it."""
    return model.compute_loss(output)
