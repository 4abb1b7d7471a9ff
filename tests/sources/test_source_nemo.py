"""NeMo files and other tars; the real files of a NeMo model, held against torch."""

from __future__ import annotations

import io
import pickle
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as save_safetensors
from source_checks import assert_holds

from nndiff.errors import SourceError
from nndiff.sources import open_source

FIXTURES = Path(__file__).parent.parent / "fixtures"
STATE = {"encoder.weight": torch.randn(3, 4), "encoder.bias": torch.randn(3).t()}


class _Shell:
    """Take any call, state or item: what the classes of packages that are not there become for torch."""

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass


class _Lenient(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (_Shell,), {})


def by_torch(file: Any) -> Any:
    """Return what torch itself reads, foreign classes made of nothing."""
    module = types.ModuleType("lenient_pickle")
    module.Unpickler, module.load = _Lenient, pickle.load  # type: ignore[attr-defined]
    return torch.load(file, map_location="cpu", weights_only=False, pickle_module=module)


def torch_bytes(state: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, **options)
    return buffer.getvalue()


def tar(path: Path, members: dict[str, bytes], mode: str = "w", **options: Any) -> Path:
    with tarfile.open(path, mode, **options) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


CONFIG = b"target: package.models.Model\nnemo_version: 1.23.0\nother: {a: 1}\n"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("front", ["", "./"])
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_nemo_files(tmp_path: Path, mode: str, front: str, kind: int) -> None:
    members = {f"{front}model_config.yaml": CONFIG, f"{front}model_weights.ckpt": torch_bytes(STATE)}
    opened = assert_holds(tar(tmp_path / "x.nemo", members, mode, format=kind), STATE)
    assert opened.kind == "nemo"
    assert opened.meta == {"target": "package.models.Model", "nemo_version": "1.23.0"}
    assert list(opened.others) == ["model_config.yaml"]


@pytest.mark.parametrize("as_zip", [True, False])
def test_weights_of_both_torch_formats(tmp_path: Path, as_zip: bool) -> None:
    data = torch_bytes(STATE, _use_new_zipfile_serialization=as_zip)
    assert_holds(tar(tmp_path / "x.nemo", {"model_weights.ckpt": data, "model_config.yaml": CONFIG}), STATE)


def test_a_tar_of_any_weights(tmp_path: Path) -> None:
    path = tar(tmp_path / "x.tar", {"a.safetensors": save_safetensors(STATE), "readme": b"hello"})
    opened = assert_holds(path, STATE, ordered=False)
    assert opened.kind == "tar"
    both = tar(tmp_path / "y.tar", {"a.safetensors": save_safetensors(STATE), "b.pt": torch_bytes(STATE)})
    wanted = {f"{front}.{name}": value for front in "ab" for name, value in STATE.items()}
    assert_holds(both, wanted, ordered=False)
    assert_holds(f"{both}::b", STATE, ordered=False)
    assert_holds(f"{path}::encoder", {"weight": STATE["encoder.weight"], "bias": STATE["encoder.bias"]}, ordered=False)


def test_what_else_several_weights_hold_is_told(tmp_path: Path) -> None:
    value = {"state_dict": STATE, "epoch": 1}
    path = tar(tmp_path / "x.tar", {"a.pt": torch_bytes(value), "b.pt": torch_bytes(value), "note": b"x"})
    opened = open_source(path)
    assert opened.describe_others() == {"note": "1 byte", "a.pt::epoch": "1", "b.pt::epoch": "1"}


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names(tmp_path: Path, kind: int) -> None:
    name = "/".join(["folder-of-a-long-name"] * 8) + "/weights-ü.ckpt"
    path = tar(tmp_path / "x.tar", {name: torch_bytes(STATE), "b/" + name: torch_bytes(STATE)}, format=kind)
    wanted = {f"{front}{name[:-5]}.{key}": value for front in ("", "b/") for key, value in STATE.items()}
    assert_holds(path, wanted)


def test_a_member_larger_than_octal_can_say_is_read_by_its_binary_size(tmp_path: Path) -> None:
    path = tar(tmp_path / "x.tar", {"w.ckpt": torch_bytes(STATE)}, format=tarfile.GNU_FORMAT)
    raw = bytearray(path.read_bytes())
    size = int(raw[124:135], 8)
    raw[124:136] = b"\x80" + size.to_bytes(11, "big")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(raw)
    assert_holds(path, STATE)


def test_links_and_sparse_members_are_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, kind in (("a.ckpt", tarfile.SYMTYPE), ("b.ckpt", tarfile.LNKTYPE), ("c.ckpt", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    with pytest.raises(SourceError, match="a tar archive without weights; it holds nothing"):
        open_source(tmp_path / "x.tar")


def test_the_real_files_hold_what_torch_reads() -> None:
    with tarfile.open(FIXTURES / "tiny_nest.nemo") as archive:
        names = [name for name in archive.getnames() if name.endswith("model_weights.ckpt")]
        member = archive.extractfile(names[0])
        assert member is not None
        nemo = by_torch(io.BytesIO(member.read()))
    lightning = by_torch(FIXTURES / "tiny_nest_pl.ckpt")["state_dict"]
    assert "omegaconf" not in sys.modules
    assert len(nemo) == len(lightning) == 99
    assert_holds(FIXTURES / "tiny_nest.nemo", nemo)
    opened = assert_holds(FIXTURES / "tiny_nest_pl.ckpt", lightning)
    assert opened.part == "state_dict"
    assert "optimizer_states" in opened.others
    assert any("omegaconf" in name for name in opened.foreign)


def test_the_optimizer_of_the_real_file_can_be_chosen() -> None:
    states = by_torch(FIXTURES / "tiny_nest_pl.ckpt")["optimizer_states"][0]["state"]
    opened = open_source(f"{FIXTURES}/tiny_nest_pl.ckpt::optimizer_states.0.state")
    wanted = {f"{number}.{name}": value for number, each in states.items() for name, value in each.items()}
    tensors = {name: value for name, value in wanted.items() if isinstance(value, torch.Tensor)}
    assert tensors
    assert set(opened.tensors) == set(wanted)
    for name, truth in tensors.items():
        assert opened.tensors[name].numpy().tolist() == truth.tolist()
