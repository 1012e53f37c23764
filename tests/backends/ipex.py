"""Comparison of the ipex backend with the default; run by `make test-ipex`."""

from __future__ import annotations

import pytest

from cputrain.backends import choose_backend
from cputrain.backends.comparison import LAYER_KINDS
from cputrain.backends.findings import collect_findings
from cputrain.machine import read_machine


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_trains_every_kind_of_layer_and_is_never_chosen():
    found = collect_findings(read_machine(detail=False), examine=True)
    (ours,) = [one for one in found if one.probed.name == "ipex"]
    assert ours.probed.reason == ""
    assert [one.layer for one in ours.verdict.training.layers] == list(LAYER_KINDS)
    assert ours.verdict.training.fault == ""
    assert ours.verdict.evaluation is None
    assert choose_backend(found, training=True) == "default"
