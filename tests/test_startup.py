"""Startup: no torch, no heavy imports, and the public names are what they are."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import nndiff
from helpers import save

_HEAVY = ("torch", "transformers", "matplotlib", "pandas", "scipy", "safetensors", "yaml")


def _imported_by(*args: str) -> set[str]:
    """Return the top-level modules a command has imported when it ends."""
    code = (
        "import sys; from nndiff.commands import main\n"
        f"try: main({list(args)!r})\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("command", ["--help", "diff", "show"])
def test_nothing_heavy_is_imported(tmp_path, command):
    path = save(tmp_path / "a.safetensors", {"a": np.ones(3, np.float32)})
    args = {"--help": ["--help"], "diff": ["diff", path, path], "show": ["show", path]}[command]
    found = _imported_by(*args)
    assert ("numpy" in found) == (command != "--help")  # the test sees what was imported
    assert not found & set(_HEAVY)


def test_models_keep_the_threads_that_comparing_does_without():
    code = "import os; from nndiff.commands import main\ntry: main(['diff', '--help'])\nexcept SystemExit: pass\n"
    code += "raise SystemExit('OPENBLAS_NUM_THREADS' in os.environ)"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=environment, check=False).returncode
        == 0
    )


def test_the_verdict_alone_needs_no_rich(tmp_path):
    path = save(tmp_path / "a.safetensors", {"a": np.ones(3, np.float32)})
    assert "rich" not in _imported_by("diff", path, path, "--quiet")
    assert "rich" in _imported_by("diff", path, path)  # the test can fail


def test_files_are_compared_without_what_recordings_need(tmp_path):
    path = save(tmp_path / "a.safetensors", {"a": np.ones(3, np.float32)})
    code = f"import sys; from nndiff.commands import main; main(['diff', {path!r}, {path!r}]); "
    code += "raise SystemExit('nndiff.recording' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_only_the_command_asked_for_is_imported():
    code = "import sys; from nndiff.commands import main\ntry: main(['show', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    found = {name for name in done.stderr.split() if name.startswith("nndiff.commands.")}
    assert "nndiff.commands.show" in found
    assert not found & {f"nndiff.commands.{name}" for name in ("diff", "record", "run", "report", "demo")}


def test_the_test_above_can_fail():
    code = "import torch, sys; sys.stderr.write(' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "torch" in done.stderr.split()


def test_torch_files_are_read_without_torch(tmp_path):
    import torch

    path = tmp_path / "a.pt"
    torch.save({"state_dict": {"a": torch.ones(3, dtype=torch.bfloat16)}, "epoch": 1}, path)
    assert "torch" not in _imported_by("diff", str(path), str(path))


def test_the_public_names():
    assert sorted(nndiff.__all__) == nndiff.__all__
    for name in nndiff.__all__:
        assert getattr(nndiff, name).__name__ == name
    assert set(nndiff.__all__) <= set(dir(nndiff))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = nndiff.nothing_of_the_kind


_PEAK = """
import resource, sys
from nndiff.commands import main
status = main(["diff", sys.argv[1], sys.argv[2], "--quiet"])
sys.stderr.write(f"{status} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}")
"""


def _peak_kilobytes(*paths: object) -> int:
    done = subprocess.run([sys.executable, "-c", _PEAK, *map(str, paths)], capture_output=True, text=True, check=True)
    status, peak = done.stderr.split()
    assert status == "1"
    return int(peak)


def _sparse(path, count: int, last: float) -> None:
    """Write a file of zeros that takes no disk, its last element set."""
    header = b'{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (count, 4 * count)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * count)
        file.seek(-4, 2)
        file.write(np.float32(last).tobytes())


def test_memory_is_flat_whatever_the_size(tmp_path):
    for name, count in (("small", 1000), ("large", 48_000_000)):
        _sparse(tmp_path / f"{name}.a", count, 1.0)
        _sparse(tmp_path / f"{name}.b", count, 2.0)
    small = _peak_kilobytes(tmp_path / "small.a", tmp_path / "small.b")
    large = _peak_kilobytes(tmp_path / "large.a", tmp_path / "large.b")
    assert large - small < 64_000  # of 384 MB read
