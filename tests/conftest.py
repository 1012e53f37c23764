"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ours to pytest's."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files in tests/golden anew, instead of comparing with them",
    )
