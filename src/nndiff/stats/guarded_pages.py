"""Pages of files that may be cut while they are read: mapped by the C extension, where it was built."""

from __future__ import annotations

from nndiff.files import GuardedPages, set_page_mapper


def _map_pages(descriptor: int, first: int, stop: int) -> GuardedPages:
    from nndiff.stats._native import Pages

    return Pages(descriptor, first, stop)


def guard_mapped_files() -> None:
    """Let every mapped file be read through the C extension; without it, nndiff.files falls back to mmap."""
    set_page_mapper(_map_pages)
