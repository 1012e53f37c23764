"""What tests of loaders share."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Loaders fork, and from Python 3.12 on that warns wherever a library has a thread."""
    item.add_marker(pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"))
