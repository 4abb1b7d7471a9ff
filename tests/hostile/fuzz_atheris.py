"""A coverage-guided fuzzer of the readers, for whoever has atheris; no part of the tests.

    pip install atheris
    python tests/hostile/fuzz_atheris.py KIND [CORPUS FOLDER] [-max_total_time=600 ...]

KIND is one of the kinds of `fuzzing.seeds` with `-` for a space (torch-legacy, npz-deflated, ...).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["nndiff"]):
    from fuzzing import check_law, seeds, write


def main() -> None:
    kind = sys.argv.pop(1).replace("-", " ")
    name, data = seeds()[kind]
    folder = Path(tempfile.mkdtemp(prefix="nndiff-fuzz-"))
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes(data)

    def once(damaged: bytes) -> None:
        check_law(write(folder, name, damaged))

    atheris.Setup([sys.argv[0], *sys.argv[1:], str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
