"""Processes of a Ray or Dask cluster for the calls of `Many`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cputrain.errors import UsageError, argument_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from cputrain.machine import Cpus


class CoreCounter:
    """Free cores of a cluster, whose scheduler decides which a call gets.

    Args:
        num_cores: Cores of the cluster.
    """

    def __init__(self, num_cores: int) -> None:
        self.num_cores = self.num_free = num_cores

    def take(self, count: int) -> tuple[Cpus, ...] | None:
        """Occupy that many cores; None if there are not enough."""
        if not 1 <= count <= self.num_free:
            return None
        self.num_free -= count
        return ((),) * count

    def release(self, cores: Sequence[Cpus]) -> None:
        """Make cores available again."""
        self.num_free += len(cores)


class RayWorkers:
    """Ray's workers; a call asks for as many CPUs as it has threads."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._is_started_here = not ray.is_initialized()
        if self._is_started_here:
            ray.init(log_to_driver=False, include_dashboard=False)
        self.num_cores = int(ray.cluster_resources().get("CPU", 1))
        self._references: set[Any] = set()

    def start(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        num_cores: int,
        callback: Callable[[Any], None],
        error_callback: Callable[[BaseException], None],
    ) -> None:
        """Start a call; one of the callbacks is called at its end."""
        task = self._ray.remote(num_cpus=num_cores, max_retries=0)(function)
        reference = task.remote(*args)
        self._references.add(reference)

        def end(future: Future[Any]) -> None:
            self._references.discard(reference)
            try:
                value = future.result()
            except self._ray.exceptions.RayTaskError as error:
                error_callback(error.cause if error.cause is not None else error)
            except Exception as error:
                error_callback(error)
            else:
                callback(value)

        reference.future().add_done_callback(end)

    def close(self) -> None:
        """Do nothing: workers are Ray's."""

    def join(self) -> None:
        """Leave a cluster that was started here."""
        if self._is_started_here and self._ray.is_initialized():
            self._ray.shutdown()

    def terminate(self) -> None:
        """Cancel all calls."""
        for reference in list(self._references):
            self._ray.cancel(reference, force=True)
        self.join()


class DaskWorkers:
    """Dask's workers, through a client of theirs.

    Args:
        client: A `distributed.Client`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.num_cores = max(1, sum(client.nthreads().values()))
        self._futures: set[Any] = set()

    def start(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        num_cores: int,  # noqa: ARG002  (a worker of Dask's has no cores, but slots)
        callback: Callable[[Any], None],
        error_callback: Callable[[BaseException], None],
    ) -> None:
        """Start a call; one of the callbacks is called at its end."""
        future = self._client.submit(function, *args, pure=False)
        self._futures.add(future)

        def end(ended: Any) -> None:
            self._futures.discard(ended)
            error = ended.exception()
            if error is None:
                callback(ended.result())
            else:
                error_callback(error)

        future.add_done_callback(end)

    def close(self) -> None:
        """Do nothing: the client is the script's."""

    def join(self) -> None:
        """Do nothing: the client is the script's."""

    def terminate(self) -> None:
        """Cancel all calls."""
        self._client.cancel(list(self._futures), force=True)


def workers_of(cluster: Any) -> RayWorkers | DaskWorkers:
    """Return the workers of a cluster.

    Args:
        cluster: "ray", or a `distributed.Client`.

    Raises:
        UsageError: It is neither, or the package is not installed.
    """
    if cluster == "ray":
        try:
            return RayWorkers()
        except ImportError:
            raise UsageError(
                "cluster", "needs Ray", found="no package ray", do="Install it: pip install ray"
            ) from None
    if hasattr(cluster, "submit") and hasattr(cluster, "nthreads"):
        return DaskWorkers(cluster)
    raise argument_error(cluster, str)(
        "cluster",
        'must be "ray" or a distributed.Client',
        found=repr(cluster),
        do="Leave it out to use this machine.",
    )
