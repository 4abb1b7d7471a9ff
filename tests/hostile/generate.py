"""Hostile files: one function per case, each writing one file or folder.

    python tests/hostile/generate.py FOLDER

writes them all, with a payload that would create FOLDER/canary if anything ever ran it. A case
says which sentence must answer it; a case without one must open, and nothing else may happen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import folders
import lying_pickles
import no_files
import numpy_files
import payloads
import safetensors_files
import tar_files
import torch_files
import zip_files
from cases import CASES

# each of them adds its cases to CASES
KINDS = (
    *(payloads, lying_pickles, torch_files, zip_files, tar_files),
    *(safetensors_files, numpy_files, folders, no_files),
)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for each in CASES.values():
        each.write(folder, folder / "canary")


if __name__ == "__main__":
    main()
