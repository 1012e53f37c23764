"""torch's elastic agent, extended to react when another node is lost or interrupted.

A node that loses power closes no connection: ranks of other nodes would wait for it until their
collective times out, after half an hour. The agents notice within seconds that its heartbeats
stopped, and restart their ranks without it. Ctrl-C on one node ends the job on all nodes.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.rendezvous import RendezvousInfo

INTERRUPTED_KEY, FINISHED_KEY_PREFIX = "cputrain/interrupted", "cputrain/through/"
"""Keys in a rendezvous round's store: the job was interrupted; a node's ranks have finished."""

PROPAGATION_S = 0.5
"""Seconds for the other agents, which poll ten times a second, to read the interruption.

The store may be a server in this process, which must not exit before that.
"""


class EndedElsewhere(SignalException):
    """Another node was interrupted."""

    def __init__(self) -> None:
        super().__init__("another node was interrupted", signal.SIGINT)


class Rendezvous(RendezvousHandler):
    """Rendezvous handler of torch that also exchanges interruptions and the loss of nodes."""

    def __init__(self, handler: RendezvousHandler) -> None:
        self._handler = handler
        self._round: RendezvousInfo | None = None
        """The current round, if several nodes take part."""
        self._is_listening = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the agents' store."""
        return self._handler.use_agent_store

    def get_backend(self) -> str:
        """Return the name of the rendezvous backend."""
        return self._handler.get_backend()

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other nodes, and return the new round."""
        info = self._handler.next_rendezvous()
        self._round = info if info.world_size > 1 else None
        return info

    def is_closed(self) -> bool:
        """Return whether the rendezvous is closed."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Close the rendezvous."""
        self._handler.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """Return a number above 0 to have ranks restarted: a node wants to join, or one was lost.

        Raises:
            EndedElsewhere: Another node was interrupted.
        """
        waiting = self._handler.num_nodes_waiting()
        if self._is_listening and self._round is not None:
            if self._is_interrupted(self._round):
                raise EndedElsewhere
            if not waiting and self._has_lost_node(self._round):
                print("cputrain: a node was lost; restarting ranks without it", file=sys.stderr)
                return 1
        return waiting

    def get_run_id(self) -> str:
        """Return the job's id."""
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        """Leave the rendezvous."""
        return self._handler.shutdown()

    @property
    def is_multi_node(self) -> bool:
        """Whether several nodes take part in the current round."""
        return self._round is not None

    def interrupt_all(self) -> None:
        """Tell the agents of all nodes that the job was interrupted."""
        if self._round is not None:
            with contextlib.suppress(DistError):
                self._round.store.set(INTERRUPTED_KEY, "")

    def mark_finished(self) -> None:
        """Note in the store that this node's ranks have finished, so that it is not missed."""
        if self._round is not None:
            self._round.store.set(f"{FINISHED_KEY_PREFIX}{self._round.rank}", "")

    def can_lose_node(self) -> bool:
        """Return whether the other nodes can continue without this one (--nnodes MIN:MAX)."""
        min_nodes = getattr(getattr(self._handler, "settings", None), "min_nodes", None)
        return self._round is None or (min_nodes is not None and self._round.world_size > min_nodes)

    def _has_lost_node(self, info: RendezvousInfo) -> bool:
        """Return whether a node left the round before its ranks had finished."""
        # torch's handlers, except the static one, remove nodes without heartbeats from this state
        state = getattr(getattr(self._handler, "_state_holder", None), "state", None)
        if state is None or len(state.participants) == info.world_size:
            return False
        missing = set(range(info.world_size)) - set(state.participants.values())
        return not info.store.check([f"{FINISHED_KEY_PREFIX}{rank}" for rank in sorted(missing)])

    def _is_interrupted(self, info: RendezvousInfo) -> bool:
        """Return whether the job was interrupted on another node."""
        try:
            return info.store.check([INTERRUPTED_KEY])
        except DistError:
            if hasattr(self._handler, "_state_holder"):
                raise
            # static rendezvous: the store is gone once its node has finished, and ranks of other
            # nodes may still run
            self._is_listening = False
            return False


class Agent(LocalElasticAgent):
    """Elastic agent that starts and monitors this node's ranks, and follows other nodes' agents."""

    def __init__(self, spec: WorkerSpec, *args: Any, **kwargs: Any) -> None:
        self._node_rendezvous = spec.rdzv_handler = Rendezvous(spec.rdzv_handler)
        super().__init__(spec, *args, **kwargs)

    def _shutdown(self, death_sig: Any = signal.SIGTERM, *args: Any, **kwargs: Any) -> None:
        """End this node's ranks; on an own signal that ends the job, tell the other nodes first."""
        exception = sys.exception()
        is_own_signal = isinstance(exception, SignalException) and not isinstance(
            exception, EndedElsewhere
        )
        ends_job = death_sig == signal.SIGINT or not self._node_rendezvous.can_lose_node()
        is_announced = is_own_signal and ends_job and self._node_rendezvous.is_multi_node
        if is_announced:  # in a thread, as the store may be gone and block
            threading.Thread(target=self._node_rendezvous.interrupt_all, daemon=True).start()
        super()._shutdown(death_sig, *args, **kwargs)
        if is_announced:
            time.sleep(PROPAGATION_S)

    def _exit_barrier(self) -> None:
        self._node_rendezvous.mark_finished()
        super()._exit_barrier()  # type: ignore[no-untyped-call]
