"""What is no file of tensors at all."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from cases import case


@case(".safetensors", "empty|too short")
def file_empty(path: Path, payload: str) -> Any:
    return b""


@case(".pt", "empty")
def file_empty_torch(path: Path, payload: str) -> Any:
    return b""


@case(".pt", "not a file of tensors that nndiff knows")
def file_of_text_named_pt(path: Path, payload: str) -> Any:
    return b"hello, world\n" * 50


@case(".txt", "not a file of tensors that nndiff knows")
def file_of_text(path: Path, payload: str) -> Any:
    return b"hello, world\n" * 50


@case(".gguf", "a GGUF file, which nndiff does not read")
def file_of_another_kind(path: Path, payload: str) -> Any:
    return b"GGUF" + b"\0" * 100


@case(".bin", "not a file of tensors that nndiff knows")
def file_of_noise(path: Path, payload: str) -> Any:
    return bytes((number * 73 + 41) % 251 for number in range(5000))


@case(".pt", "not a regular file but a named pipe")
def file_is_a_pipe(path: Path, payload: str) -> None:
    os.mkfifo(path)


@case(".pt", "not a regular file but a socket")
def file_is_a_socket(path: Path, payload: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket must be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


@case(".pt", "not a regular file but a device")
def file_is_a_device(path: Path, payload: str) -> None:
    path.symlink_to("/dev/zero")


@case(".pt", "too many levels of symbolic links")
def file_is_a_loop(path: Path, payload: str) -> None:
    path.symlink_to(path.name)


@case(".pt", "no such file or directory")
def file_is_a_link_to_nothing(path: Path, payload: str) -> None:
    path.symlink_to("nothing")


@case(".pt", "no such file or directory")
def file_is_missing(path: Path, payload: str) -> None:
    pass


@case(".pt", "no such file or directory", part="key")
def file_is_missing_with_a_part(path: Path, payload: str) -> None:
    pass
