"""Both runs of the training script, made once: importing torch is what takes the time.

And settings, applied in this process for a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from cputrain.runtime import attention
from tests.launch.programs import launch, plain

SCRIPT = str(Path(__file__).with_name("training.py"))


class Trained(NamedTuple):
    """What training.py printed, and the line of ours after it."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    line: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """training.py under cputrain launch, and under plain python."""
    folder = tmp_path_factory.mktemp("trained")
    # one thread: tensors this small have no work for two
    ours = launch(folder, SCRIPT, OMP_NUM_THREADS="1")
    theirs = plain(folder, SCRIPT, OMP_NUM_THREADS="1")
    assert theirs.returncode == 0, theirs.stderr
    assert ours.returncode == 0, ours.stderr
    *warnings, line = ours.stderr.splitlines()
    assert len(warnings) == len(theirs.stderr.splitlines()), ours.stderr
    return Trained(json.loads(ours.stdout), json.loads(theirs.stdout), line)


@pytest.fixture
def applied() -> Iterator[Callable[[Any, Any], Any]]:
    """Applies a module's setting, and undoes it after the test; torch's classes are as before."""
    call, compile, done = nn.Module.__call__, torch.compile, []  # noqa: A001

    def apply(setting: Any, value: Any = True) -> Any:
        found = setting.SETTING.apply(torch, value)
        done.append(found)
        return found

    yield apply
    for found in reversed(done):
        found.undo()
    assert nn.Module.__call__ is call
    assert "view" not in torch.Tensor.__dict__
    assert functional.scaled_dot_product_attention.__module__ != attention.__name__
    assert torch.compile is compile
