"""Config and tokenizer files: settings that make another network of the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nndiff.findings.causes import Cause
from nndiff.result import Finding, SettingDifference
from nndiff.settings import describe_setting
from nndiff.text import first_few


def find_changed_settings(settings: Sequence[SettingDifference]) -> Iterator[Finding]:
    """Yield one finding for each file whose settings change the network."""
    changing_by_file: dict[str, list[SettingDifference]] = {}
    for setting in settings:
        if setting.changes_network:
            changing_by_file.setdefault(setting.file, []).append(setting)
    for file, changing in changing_by_file.items():
        evidence = first_few([describe_setting(setting) for setting in changing], between="; ")
        repair = f"give both folders the {file} that belongs to these weights, or leave a key out with --exclude"
        where = tuple(setting.name for setting in changing)
        yield Finding(Cause.CONFIG, where, evidence, repair, 1.0, candidate=changing[0].candidate)
