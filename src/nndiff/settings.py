"""Settings beside the weights: config and tokenizer files of two Hugging Face folders, key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nndiff.errors import SourceError
from nndiff.files import Window
from nndiff.result import CANDIDATE, REFERENCE, Note, NoteSlug, SettingDifference
from nndiff.sources import Source
from nndiff.sources.json_text import read_json
from nndiff.text import first_few, plural, printable

MOST_LISTED = 16  # differences inside one object or list that are named one by one
DEEPEST = 12  # levels of a file that are compared key by key
LONGEST_VALUE = 60  # characters of a value in a result
LARGEST_TEXT = 64 << 20  # bytes of a text file that is compared line by line
_ABSENT = object()

# Keys that say where a file comes from, how it is stored, or what people call things: the network is the same.
_ORIGIN = ("transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "unsloth_version", "unsloth_fixed")
_HARMLESS: Mapping[str, frozenset[str]] = {
    "config.json": frozenset(
        (
            *_ORIGIN,
            *("dtype", "use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript"),
            *("initializer_range", "initializer_factor", "init_std", "gradient_checkpointing", "finetuning_task"),
            *("id2label", "label2id", "task_specific_params", "_attn_implementation", "attn_implementation"),
            *("_attn_implementation_autoset", "_attn_implementation_internal"),
        )
    ),
    # how text is drawn from the network, and when that ends; which tokens are special does count
    "generation_config.json": frozenset(
        (
            *(*_ORIGIN, "_from_model_config", "use_cache", "return_dict_in_generate", "cache_implementation"),
            *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
            *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
            *("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping"),
            *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "renormalize_logits"),
            *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "num_return_sequences"),
            *("penalty_alpha", "guidance_scale", "low_memory", "assistant_confidence_threshold"),
        )
    ),
    # truncation and padding are those of the last call before it was saved
    "tokenizer.json": frozenset(("version", "truncation", "padding")),
    "tokenizer_config.json": frozenset(
        (
            *(*_ORIGIN, "tokenizer_class", "processor_class", "special_tokens_map_file", "tokenizer_file"),
            *("backend", "is_local", "model_max_length"),
        )
    ),
    "preprocessor_config.json": frozenset((*_ORIGIN, "processor_class", "_processor_class")),
    "processor_config.json": frozenset((*_ORIGIN, "processor_class")),
}


def compare_settings(reference: Source, candidate: Source, label: str) -> tuple[list[SettingDifference], list[Note]]:
    """Return the settings that differ between two folders, and notes on what is harmless or on one side only."""
    differences: list[SettingDifference] = []
    notes: list[Note] = []
    if not (reference.settings and candidate.settings):
        return differences, notes
    for file in dict.fromkeys((*reference.settings, *candidate.settings)):
        windows = reference.settings.get(file), candidate.settings.get(file)
        if windows[0] is None or windows[1] is None:
            side = CANDIDATE if windows[0] is None else REFERENCE
            notes.append(Note(NoteSlug.SETTINGS_ON_ONE_SIDE, f"{file} is only in the {side}: not compared"))
            continue
        for key, values in _compare_files(file, windows[0], windows[1]):
            changes = _changes_network(file, key, values)
            differences.append(SettingDifference(label, file, key, values, changes))
    return differences, notes


def note_harmless_settings(settings: Sequence[SettingDifference]) -> Iterator[Note]:
    """Yield one note that names the settings that differ and do not change the network."""
    texts = [describe_setting(setting) for setting in settings if not setting.changes_network]
    if texts:
        yield Note(NoteSlug.HARMLESS_SETTINGS, f"other settings that do not change the network: {first_few(texts)}")


def describe_setting(setting: SettingDifference) -> str:
    """Return `config.json:rope_theta 10000.0 against 500000.0`."""
    reference, candidate = ("absent" if value is None else value for value in setting.values)
    return f"{printable(setting.name, 80)} {reference} against {candidate}"


def _changes_network(file: str, key: str, values: tuple[str | None, str | None]) -> bool:
    """Return False for keys that are known to be harmless; what is not known counts."""
    names = key.split(".")
    if names[-1] == "architectures" and None in values:  # one side names no class: nothing that could differ
        return False
    return not any(name in _HARMLESS.get(file, ()) for name in names)


Change = tuple[str, tuple[str | None, str | None]]  # key, and the value on both sides


def _compare_files(file: str, reference: Window, candidate: Window) -> Iterator[Change]:
    """Yield what differs in one file: key by key where it is JSON, else as a whole."""
    if _have_equal_bytes(reference, candidate):
        return
    if file.endswith(".txt"):
        yield from _compare_lines(reference, candidate)
    elif not file.endswith(".json"):
        yield "", (plural(reference.size, "byte"), plural(candidate.size, "byte"))
    else:
        documents = []
        for window in (reference, candidate):
            try:
                documents.append(_unify_names(read_json(window, "text"), 0))
            except (SourceError, RecursionError) as error:
                trouble = error.trouble if isinstance(error, SourceError) else "is nested too deeply"
                sides = (printable(f"unreadable: it {trouble}", 120), "not compared")
                yield "", sides if window is reference else sides[::-1]
                return
        yield from _compare_values("", documents[0], documents[1], 0)


def _have_equal_bytes(reference: Window, candidate: Window) -> bool:
    if reference.size != candidate.size:
        return False
    return all(ours == theirs for ours, theirs in zip(reference.chunks(), candidate.chunks(), strict=True))


def _compare_lines(reference: Window, candidate: Window) -> Iterator[Change]:
    """Yield the first line that differs and how many there are; a line that names a version says nothing."""
    if max(reference.size, candidate.size) > LARGEST_TEXT:
        yield "", (plural(reference.size, "byte"), plural(candidate.size, "byte"))
        return
    sides = []
    for window in (reference, candidate):
        lines = window.read(0, window.size).decode("utf-8", "replace").splitlines()
        sides.append([line for line in lines if not line.startswith("#version") and line.strip()])
    if sides[0] == sides[1]:
        return
    first = next((n for n, (ours, theirs) in enumerate(zip(*sides, strict=False)) if ours != theirs), None)
    first = min(map(len, sides)) if first is None else first
    shown = [lines[first] if first < len(lines) else None for lines in sides]
    values = _show_values(*(_ABSENT if line is None else line for line in shown))
    yield f"line {first + 1}", values


def _unify_names(config: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return a config with the names of older and newer versions of transformers as one.

    `torch_dtype` became `dtype`, and `rope_theta` beside `rope_scaling` became `rope_parameters`; a rope of type
    `default` is none.
    """
    unified: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and depth < DEEPEST:
            value = _unify_names(value, depth + 1)
        unified["dtype" if key == "torch_dtype" else key] = value
    rope = unified.get("rope_parameters") or unified.get("rope_scaling")
    if isinstance(rope, dict) and not any(isinstance(value, dict) for value in rope.values()):
        unified.pop("rope_parameters", None)
        rope = {"rope_type" if key == "type" else key: value for key, value in rope.items()}
        if "rope_theta" in rope:
            unified["rope_theta"] = rope.pop("rope_theta")
        if rope.get("rope_type") == "default":
            del rope["rope_type"]
        unified["rope_scaling"] = rope
    if "rope_scaling" in unified and not unified["rope_scaling"]:
        del unified["rope_scaling"]
    return unified


def _compare_values(key: str, reference: Any, candidate: Any, depth: int) -> Iterator[Change]:
    """Yield the values that differ below a key; where they are many, that there are."""
    if isinstance(reference, list) and isinstance(candidate, list) and len(reference) == len(candidate):
        reference, candidate = dict(enumerate(reference)), dict(enumerate(candidate))
    if not (isinstance(reference, dict) and isinstance(candidate, dict)) or depth >= DEEPEST:
        if not _are_equal(reference, candidate):
            yield key, _show_values(reference, candidate)
        return
    changes: list[Change] = []
    differing = 0
    for name in dict.fromkeys((*reference, *candidate)):
        ours, theirs = reference.get(name, _ABSENT), candidate.get(name, _ABSENT)
        below = list(_compare_values(f"{key}.{name}" if key else str(name), ours, theirs, depth + 1))
        differing += bool(below)
        if differing <= MOST_LISTED:
            changes += below
    if differing <= MOST_LISTED:
        yield from changes
    else:
        yield key, (_count_entries(reference), f"{_count_entries(candidate)}, {differing:,} different")


def _are_equal(reference: Any, candidate: Any) -> bool:
    """Return True for equal values: 1 and 1.0 are, 1 and true are not, NaN is NaN."""
    if isinstance(reference, bool) is not isinstance(candidate, bool):
        return False
    return bool(reference == candidate) or (reference != reference and candidate != candidate)


def _count_entries(container: dict[Any, Any]) -> str:
    return f"{len(container):,} {'entry' if len(container) == 1 else 'entries'}"


def _show_values(reference: Any, candidate: Any) -> tuple[str | None, str | None]:
    """Return two values as short JSON, long ones from where they differ; None for an absent one."""
    texts = []
    for value in (reference, candidate):
        texts.append(None if value is _ABSENT else printable(json.dumps(value, ensure_ascii=False)))
    start = 0
    if texts[0] is not None and texts[1] is not None:
        shared = zip(texts[0], texts[1], strict=False)
        start = next((place for place, (ours, theirs) in enumerate(shared) if ours != theirs), 0)
    start = max(0, start - LONGEST_VALUE // 4)
    shown: list[str | None] = []
    for text in texts:
        if text is not None and len(text) > LONGEST_VALUE:
            text = ("…" if start else "") + text[start : start + LONGEST_VALUE] + "…"
        shown.append(text)
    return shown[0], shown[1]
