"""The agent that starts this node's ranks and watches them: torch's own, with its own options.

    python -m cputrain.ranks --nproc-per-node 2 --no-python COMMAND …

is torchrun but for some things. It ends with the exit code of the rank that failed first, or with
128 and the number of the signal that ended that rank, or the agent itself. Ranks that do not follow
a signal are killed after seconds, not half a minute, and if the agent is killed, so are they. It
hears of nodes that were interrupted or are gone. Ranks that are started again meet in a store of
their own: in the agent's they may find the addresses of those before them, and fail to connect. And
it does not say that each rank has one thread, as none has.
"""

from __future__ import annotations

import os
import signal
import sys

from cputrain.machine.ranks import AGENT_PID, AGENT_THREADS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

PATIENCE = 3
"""Seconds for ranks to end by themselves, where the user says nothing."""


def main(argv: list[str]) -> int:
    """Start the ranks; their exit code."""
    # torch's agent takes its absence for a reason to set it to 1, and says so; each rank's launch
    # knows that value for the agent's caution
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = os.environ[AGENT_THREADS] = "1"
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    os.environ[AGENT_PID] = str(os.getpid())
    from torch.distributed import DistError, run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher import api

    from cputrain.ranks.agent import Agent

    asked = run.get_args_parser().parse_args(argv)
    if getattr(asked, "shutdown_timeout", PATIENCE) is None and (
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in os.environ
    ):
        asked.shutdown_timeout = PATIENCE
    launcher: Any = api
    launcher.LocalElasticAgent = Agent
    start: Any = run.run
    try:
        start(asked)
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda one: _when(one[1]))
        told: Any = error
        told.get_first_failure = lambda: (rank, failure)
        print(told.format_msg(), file=sys.stderr, flush=True)
        code = failure.exitcode
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        print(f"cputrain: rank {rank} failed first, with {how}", file=sys.stderr)
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 130
    except (RendezvousError, DistError) as error:
        print(
            f"cputrain: nodes cannot meet at {asked.rdzv_endpoint or 'the first'}, or not any "
            f"more: {(str(error) or type(error).__name__).splitlines()[0]}",
            file=sys.stderr,
        )
        return 1
    return 0


BY_OTHERS = ("RankGone", "Connection closed by peer", "Connection reset by peer")
"""What the error of a rank says that has failed as another one had."""


def _when(failure: ProcessFailure) -> tuple[bool, int]:
    """What is least for the rank that failed first: times are in whole seconds, and that of one
    that was killed is when the agent found it."""
    said = str(failure.message)
    ended = failure.exitcode == -signal.SIGTERM or any(one in said for one in BY_OTHERS)
    return ended, failure.timestamp


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
