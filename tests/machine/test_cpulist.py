"""Lists and masks of CPUs, as the kernel writes and reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputrain.machine.cpulist import MAX_CPUS, format_list, parse_list, parse_mask
from tests.machine.trees import mask

CPUS = st.frozensets(st.integers(0, 5000))


@given(CPUS)
def test_a_list_comes_back_as_it_was(cpus: frozenset[int]) -> None:
    """What is formatted is parsed to the same numbers, sorted."""
    assert parse_list(format_list(cpus)) == tuple(sorted(cpus))


@given(CPUS)
def test_a_mask_comes_back_as_it_was(cpus: frozenset[int]) -> None:
    """Groups of 32 bits, the highest first."""
    assert parse_mask(mask(cpus)) == tuple(sorted(cpus))


@given(st.text(alphabet="0123456789-,: \nabcx²_"))
def test_any_text_is_parsed_or_refused_with_a_value_error(text: str) -> None:
    """No other exception, whatever a damaged file holds."""
    for parse in (parse_list, parse_mask):
        try:
            found = parse(text)
        except ValueError:
            continue
        assert found == tuple(sorted(set(found)))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("\n", ()),
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0-10:5,3\n", (0, 3, 5, 10)),
        (" 1 , 2 ", (1, 2)),
    ],
)
def test_lists_have_these_forms(text: str, cpus: tuple[int, ...]) -> None:
    """Single numbers, spans, and spans with a step."""
    assert parse_list(text) == cpus


@pytest.mark.parametrize(
    "text", ["a", "1-", "3-1", "-1", "0-3:0", "0-3:-1", f"0-{MAX_CPUS}", "1 2"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    """Backwards, without an end, negative, beyond any machine."""
    with pytest.raises(ValueError, match=r".+"):
        parse_list(text)


@pytest.mark.parametrize("text", ["-1", "xyz", "f" * (MAX_CPUS // 4 + 1)])
def test_what_is_no_mask_is_refused(text: str) -> None:
    """Negative, not hexadecimal, longer than any machine's."""
    with pytest.raises(ValueError, match=r".+"):
        parse_mask(text)


def test_the_shortest_list_is_written() -> None:
    """Neighbours are joined, pairs too; order and repeats do not matter."""
    assert format_list([8, 1, 0, 2, 3, 3]) == "0-3,8"
    assert format_list([4, 5]) == "4-5"
    assert format_list([]) == ""
