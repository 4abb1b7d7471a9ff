"""Gold files: whole documents, compared as text. NNDIFF_REGENERATE_GOLD=1 writes them anew."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "gold"


def check_gold(name: str, text: str, folder: Path = FOLDER) -> None:
    """Fail, with the lines that differ, unless the text is the one kept under this name."""
    path = folder / name
    if os.environ.get("NNDIFF_REGENERATE_GOLD"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    if not path.exists():
        raise AssertionError(f"no gold file {path}: run with NNDIFF_REGENERATE_GOLD=1 and read what it wrote")
    kept = path.read_bytes().decode()
    if kept != text:
        lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), "gold", "now", lineterm="", n=1)
        raise AssertionError(f"{path.name} has changed:\n" + "\n".join(lines))
