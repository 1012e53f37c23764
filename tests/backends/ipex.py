"""The proof of Intel's extension for real; `make test-ipex` installs it and runs this."""

from __future__ import annotations

import pytest

from cputrain.backends import chosen
from cputrain.backends.findings import findings
from cputrain.backends.proof import KINDS
from cputrain.machine import read_machine


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_trains_every_kind_of_layer_and_is_never_chosen():
    found = findings(read_machine(detail=False), examine=True)
    (ours,) = [one for one in found if one.probed.name == "ipex"]
    assert ours.probed.reason == ""
    assert [one.layer for one in ours.verdict.training.layers] == list(KINDS)
    assert ours.verdict.training.fault == ""
    assert ours.verdict.evaluation is None
    assert chosen(found, training=True) == "default"
