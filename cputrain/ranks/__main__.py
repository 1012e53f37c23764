"""Agent that starts and monitors this node's ranks: torchrun with a few differences.

    python -m cputrain.ranks --nproc-per-node 2 --no-python COMMAND …

- The exit code is that of the rank that failed first; 128 + n if signal n ended that rank or the
  agent.
- Ranks that ignore a signal are killed after 3 seconds, not 30; if the agent is killed, they are
  killed as well.
- Interrupted or lost nodes are noticed (see `agent`).
- Restarted ranks rendezvous in a new store: in the agent's, they may find the addresses of the
  previous ranks and fail to connect.
- torchrun's warning that it set OMP_NUM_THREADS=1 is left out, as each rank's launch plans its
  threads.
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

SHUTDOWN_TIMEOUT_S = 3
"""Default seconds for ranks to exit after a signal before they are killed."""


def main(argv: list[str]) -> int:
    """Run the agent until all ranks have ended; return the exit code."""
    # without this variable, torch's agent sets it to 1 with a warning; AGENT_THREADS tells each
    # rank's launch that the value is not the user's
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

    options = run.get_args_parser().parse_args(argv)
    if getattr(options, "shutdown_timeout", SHUTDOWN_TIMEOUT_S) is None and (
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in os.environ
    ):
        options.shutdown_timeout = SHUTDOWN_TIMEOUT_S
    launcher: Any = api
    launcher.LocalElasticAgent = Agent
    start: Any = run.run
    try:
        start(options)
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda item: _failure_order(item[1]))
        child_error: Any = error
        child_error.get_first_failure = lambda: (rank, failure)
        print(child_error.format_msg(), file=sys.stderr, flush=True)
        code = failure.exitcode
        reason = f"exit code {code}" if code >= 0 else f"signal {-code}"
        print(f"cputrain: rank {rank} failed first, with {reason}", file=sys.stderr)
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 130
    except (RendezvousError, DistError) as error:
        print(
            f"cputrain: the rendezvous at {options.rdzv_endpoint or 'the first node'} failed or "
            f"was lost: {(str(error) or type(error).__name__).splitlines()[0]}",
            file=sys.stderr,
        )
        return 1
    return 0


CONSEQUENCE_TEXTS = ("RankGone", "Connection closed by peer", "Connection reset by peer")
"""Texts in the error of a rank that failed because another rank had failed."""


def _failure_order(failure: ProcessFailure) -> tuple[bool, int]:
    """Return a sort key that is least for the rank that failed first.

    The time alone does not tell: it is in whole seconds, and for a killed rank it is the time at
    which the agent noticed.
    """
    text = str(failure.message)
    is_consequence = failure.exitcode == -signal.SIGTERM or any(
        part in text for part in CONSEQUENCE_TEXTS
    )
    return is_consequence, failure.timestamp


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
