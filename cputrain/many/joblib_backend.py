"""joblib's calls, and with them scikit-learn's `n_jobs`, in the processes of `Many`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joblib._parallel_backends import AutoBatchingMixin, ParallelBackendBase
from joblib.externals.loky import wrap_non_picklable_objects

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from cputrain.many.executor import Many


class ManyBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Backend of joblib that submits to an executor.

    Args:
        many: The executor.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, *, many: Many, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._many = many

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many calls may run at the same time."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        most = self._many.num_cores
        if n_jobs is None:
            return most
        return max(1, most + 1 + n_jobs) if n_jobs < 0 else n_jobs

    def submit(self, func: Callable[[], Any], callback: Any = None) -> Future[Any]:
        """Submit a batch of calls, and have joblib called back at its end."""
        # functions of a notebook or of another function are pickled by value
        future = self._many.submit(wrap_non_picklable_objects(func))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return the results of a batch, or raise its error."""
        return future.result()
