"""Places in two models: what certain pairs say about blocks, their numbers and modules."""

from __future__ import annotations

import pytest

from nndiff.align.name_parts import cut_at_numbers, list_by_region
from nndiff.align.places import Places, predict_number


def test_a_name_is_cut_at_each_number() -> None:
    cuts = [tuple(cut) for cut in cut_at_numbers("h.3.ln_1.weight")]
    assert cuts == [("h.", 3, ".ln_1.weight"), ("h.3.ln_", 1, ".weight")]
    assert list(cut_at_numbers("step.007.x")) == []
    assert list(cut_at_numbers("id.1234567890.x")) == []
    assert set(list_by_region(["h.1.x.w", "h.10.x.w"])) == {"", "h.1", "h.1.x.", "h.10", "h.10.x."}


ALL = range(12)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({0: 0, 1: 1}, 7),
        ({0: 1, 5: 6}, 8),
        ({0: 11, 3: 8}, 4),
        ({2: 10, 3: 11, 0: 0}, 5),  # 0, 1, 10, 11, 2, ...: place 7 holds 5
        ({10: 2, 11: 3, 0: 0}, 9),  # the other way round
        ({0: 5, 1: 3, 2: 9}, None),
    ],
)
def test_numbers_of_blocks_follow_a_rule(known: dict[int, int], expected: int | None) -> None:
    assert predict_number(known, 7, ALL, ALL) == expected


def test_a_rule_for_numbers_needs_two_blocks() -> None:
    assert predict_number({0: 0}, 7, ALL, ALL) is None
    assert predict_number({0: 0, 1: 1}, 7, ALL, ALL) == 7
    assert predict_number({7: 3}, 7, ALL, ALL) == 3


def test_other_blocks_show_the_name() -> None:
    names = [f"h.{number}.{part}" for number in range(4) for part in ("ln_1.weight", "ln_2.weight", "fc.weight")]
    partners = [f"b.{number}.{part}" for number in range(4) for part in ("norm1.w", "norm2.w", "up.w")]
    pairs = dict(zip(names, partners, strict=True))
    for name, partner in pairs.items():
        places = Places(names, partners)
        for reference, candidate in pairs.items():
            if reference != name:
                places.add_pair(reference, candidate)
        assert places.predict_names(name) == {partner}
    assert Places(names, partners).predict_names(names[0]) == set()


def test_blocks_about_which_pairs_disagree_are_not_known() -> None:
    places = Places(["h.0.a", "h.0.b", "h.1.a", "h.2.a"], ["b.0.a", "b.1.b", "b.1.a", "b.2.a"])
    for pair in (("h.0.a", "b.0.a"), ("h.0.b", "b.1.b"), ("h.1.a", "b.1.a"), ("h.2.a", "b.2.a")):
        places.add_pair(*pair)
    regions = list(places.regions())
    assert ("h.0", "b.0") not in regions
    assert ("h.2", "b.2") in regions
    assert regions[-1] == ("", "")
