"""Torch's agent, which also hears of other nodes: one was interrupted, one is gone.

A node whose power fails closes no connection: ranks elsewhere wait for it until their exchange
times out, after half an hour. Their agents know within seconds, as its heartbeats end, and start
ranks again without it. And Ctrl-C on one node ends the job on all.
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

INTERRUPTED, THROUGH = "cputrain/interrupted", "cputrain/through/"
"""Keys in the store of a round: that it is over for all; that a node has done its part."""

MOMENT = 0.5
"""Seconds in which other agents, which look ten times a second, read what this one has told them:
the store may be its own."""


class EndedElsewhere(SignalException):
    """Another node was interrupted."""

    def __init__(self) -> None:
        super().__init__("another node was interrupted", signal.SIGINT)


class Rendezvous(RendezvousHandler):
    """Where nodes meet, and what they tell one another there."""

    def __init__(self, handler: RendezvousHandler) -> None:
        self._handler = handler
        self._round: RendezvousInfo | None = None
        """This one, where other nodes take part."""
        self._hears = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the store of the agents."""
        return self._handler.use_agent_store

    def get_backend(self) -> str:
        """Its name."""
        return self._handler.get_backend()

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the others."""
        found = self._handler.next_rendezvous()
        self._round = found if found.world_size > 1 else None
        return found

    def is_closed(self) -> bool:
        """Whether nobody meets here any more."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Nobody meets here any more."""
        self._handler.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """Above 0, ranks are started again: a node waits to be taken in, or one is gone."""
        waiting = self._handler.num_nodes_waiting()
        if self._hears and self._round is not None:
            if self._is_interrupted(self._round):
                raise EndedElsewhere
            if not waiting and self._lost(self._round):
                print("cputrain: a node has left; ranks are started again", file=sys.stderr)
                return 1
        return waiting

    def get_run_id(self) -> str:
        """The job's name."""
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        """Leave."""
        return self._handler.shutdown()

    @property
    def has_others(self) -> bool:
        """Whether there is another node."""
        return self._round is not None

    def interrupt(self) -> None:
        """Have all nodes end."""
        if self._round is not None:
            with contextlib.suppress(DistError):
                self._round.store.set(INTERRUPTED, "")

    def through(self) -> None:
        """This node's ranks have done their part: it is not missed from now on."""
        if self._round is not None:
            self._round.store.set(f"{THROUGH}{self._round.rank}", "")

    def can_do_without_one(self) -> bool:
        """Whether others may go on when this node leaves."""
        least = getattr(getattr(self._handler, "settings", None), "min_nodes", None)
        return self._round is None or (least is not None and self._round.world_size > least)

    def _lost(self, here: RendezvousInfo) -> bool:
        # who takes part, as torch's handlers but the static one keep it: without the dead
        state = getattr(getattr(self._handler, "_state_holder", None), "state", None)
        if state is None or len(state.participants) == here.world_size:
            return False
        away = set(range(here.world_size)) - set(state.participants.values())
        return not here.store.check([f"{THROUGH}{rank}" for rank in sorted(away)])

    def _is_interrupted(self, here: RendezvousInfo) -> bool:
        try:
            return here.store.check([INTERRUPTED])
        except DistError:
            if hasattr(self._handler, "_state_holder"):
                raise
            # at a fixed place nobody has to meet again: ranks may go on when its node is through
            self._hears = False
            return False


class Agent(LocalElasticAgent):
    """Starts this node's ranks, watches them, and listens to the other nodes' agents."""

    def __init__(self, spec: WorkerSpec, *args: Any, **kwargs: Any) -> None:
        self._meeting = spec.rdzv_handler = Rendezvous(spec.rdzv_handler)
        super().__init__(spec, *args, **kwargs)

    def _shutdown(self, death_sig: Any = signal.SIGTERM, *args: Any, **kwargs: Any) -> None:
        """Ranks are to end: by their agent's signal, or as the agent is through."""
        why = sys.exception()
        own = isinstance(why, SignalException) and not isinstance(why, EndedElsewhere)
        ends = death_sig == signal.SIGINT or not self._meeting.can_do_without_one()
        told = own and ends and self._meeting.has_others
        if told:  # aside, as the place where they meet may be gone
            threading.Thread(target=self._meeting.interrupt, daemon=True).start()
        super()._shutdown(death_sig, *args, **kwargs)
        if told:
            time.sleep(MOMENT)

    def _exit_barrier(self) -> None:
        self._meeting.through()
        super()._exit_barrier()  # type: ignore[no-untyped-call]
