"""Networks of timm, transformers and torchvision: divided, and then right; or told by name.

Each run draws some. `CASES_SEED=N` draws those of another run, `CASES_ALL=1` takes all of them.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.split.ordinary import NAMES, compare
from tests.torchvision_folder import is_there

pytestmark = pytest.mark.skipif(not is_there(), reason="needs torchvision's definitions")

UNDIVIDED = {"transformers/MixtralForCausalLM": "the operator sort"}
"""It sorts the tokens of the whole batch by expert."""

INEXACT = {"transformers/MambaForCausalLM": 1e-6}
"""It computes a part in float32."""

SEED = int(os.environ.get("CASES_SEED") or random.SystemRandom().randrange(1 << 32))

NUM_DRAWN = len(NAMES) if os.environ.get("CASES_ALL") else 6


def check(name):
    reason, apart = compare(name)
    told = f"CASES_SEED={SEED}, {name}: {reason or apart}"
    assert UNDIVIDED.get(name, "") in reason, told
    assert bool(reason) == (name in UNDIVIDED), told
    assert apart <= INEXACT.get(name, 1e-10), told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
@pytest.mark.parametrize("number", range(NUM_DRAWN))
def test_a_network_is_divided_as_one_batch_or_says_why_not(number):
    check(random.Random(SEED).sample(NAMES, NUM_DRAWN)[number])


@pytest.mark.filterwarnings("ignore")
def test_a_small_transformer_is_divided_as_one_batch_or_says_why_not():
    check(random.Random(SEED).choice([name for name in NAMES if name.startswith("transformers/")]))
