"""What tests of loaders share."""

from __future__ import annotations

import pytest
import torch.utils.data

from cputrain.data import messages


def pytest_itemcollected(item: pytest.Item) -> None:
    """Loaders fork, and from Python 3.12 on that warns wherever a library has a thread."""
    item.add_marker(pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"))


@pytest.fixture(autouse=True, scope="session")
def _torch_waits_briefly() -> None:
    """Have torch's loader wait for less than five seconds for workers that do not answer."""
    utils, iterator = torch.utils.data._utils, torch.utils.data.dataloader
    for module in (utils, utils.worker):
        module.MP_STATUS_CHECK_INTERVAL = 0.5
    iterator._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (2.0,)


@pytest.fixture(autouse=True)
def _each_test_hears_all_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was said before: a message is said once in a process."""
    monkeypatch.setattr(messages, "_reported", set())
