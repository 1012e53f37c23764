"""Inductor is imported before the tests, whose warnings are errors: torch warns of its own code."""

from __future__ import annotations

import warnings

import pytest


@pytest.fixture(autouse=True, scope="package")
def _inductor() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch._inductor.compile_fx  # noqa: F401
