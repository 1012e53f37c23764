"""Models that mix samples or keep state train as plain python trains them, or are left undivided."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from cputrain import Split

sys.path.insert(0, str(Path(__file__).parent))
import zoo  # noqa: E402

OURS = "cputrain.Split: "


def run(name, wrap):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result, call = zoo.train(name, wrap)
    texts = [str(one.message) for one in told]
    return result, call, [text for text in texts if not text.startswith(OURS)]


@pytest.mark.parametrize("name", zoo.PATTERNS)
@pytest.mark.usefixtures("exactly")
def test_a_model_of_the_zoo_trains_as_it_does_without_split(name):
    given = zoo.PATTERNS[name]
    plain, _, before = run(name, lambda model: model)
    divided, split, after = run(name, lambda model: Split(model, replicas=2))
    assert zoo.differences(plain, divided, given.rtol) == []
    assert [text for text in after if text not in before] == []  # torch tells some only once
    if given.expected == "divided":
        assert split.calls_divided, split.why_not
    else:
        assert split.calls_divided or split.why_not
    if given.expected not in ("divided", "either"):
        assert given.expected in split.why_not
