"""Setting `memory_policy`: NUMA nodes of new pages, on machines with several nodes."""

from __future__ import annotations

import os

from cputrain.record import Record
from cputrain.settings.core.cores import share_of
from cputrain.settings.core.setting import THREADS, RefusedError, Setting
from cputrain.settings.core.values import fields, numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request, UserValue

SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236, "riscv64": 236, "ppc64le": 260, "s390x": 269}
"""Numbers of the system calls by architecture; glibc has no functions for them."""

MPOL_DEFAULT, MPOL_INTERLEAVE = 0, 3
MODE_MASK = 0xFF
"""The bits of the mode; those above are flags."""


class Interleave(Record):
    """Policy that places new pages on several NUMA nodes in turn."""

    interleave: tuple[int, ...]
    """The nodes."""


class MemoryPolicySetting(Setting[Interleave | None]):
    """Where new pages go; None places them on the node of the core that touches them first."""

    name = "memory_policy"
    order = 40
    group = THREADS
    is_advanced = True
    takes = "auto|local|interleave"
    help = "where pages go when the budget spans memory nodes"
    choices = ("auto", "local", "interleave")
    rule = '{"interleave": [nodes]}, or null'
    plain = "local"
    is_per_thread = True
    patches_torch = False

    def decide(self, machine: Machine, request: Request) -> Decision[Interleave | None]:
        """Return interleaving if one process computes on several nodes, else first touch."""
        cpus = frozenset(share_of(machine, request).cpus)
        nodes = tuple(node.id for node in machine.nodes if cpus & frozenset(node.cpus))
        user = request.setting(self.name)
        if user is not None and user.value == "interleave" and len(nodes) > 1:
            return self._interleave(nodes, user=user)
        if user is not None:
            return self._local(
                user=user,
                warning=""
                if user.value == "local"
                else f"{user.where} interleave has no effect: the CPUs of this process sit on one "
                "memory node; leave it out",
            )
        if len(nodes) < 2:
            return self._local("the CPUs of this process sit beside one memory node")
        if machine.gpu_driver:
            return self._local(
                "a GPU driver is loaded, and interleaved staging buffers slow transfers to it",
                rejected={
                    "interleave": f"{machine.gpu_driver} is loaded; say {self.flag} interleave if "
                    "the script trains on the CPU alone"
                },
            )
        return self._interleave(
            nodes,
            f"its CPUs sit on {len(nodes)} nodes, and parameters that one thread touched first "
            "would all be read from that thread's node",
        )

    def _interleave(
        self, nodes: tuple[int, ...], reason: str = "", user: UserValue | None = None
    ) -> Decision[Interleave | None]:
        return self.decision(
            Interleave(interleave=nodes),
            _says(nodes),
            reason,
            user=user,
            rejected={
                "local": "all cores would queue for one node's memory channels; "
                f"{self.flag} local keeps first touch"
            },
        )

    def _local(
        self,
        reason: str = "",
        *,
        user: UserValue | None = None,
        rejected: Mapping[str, str] | None = None,
        warning: str = "",
    ) -> Decision[Interleave | None]:
        decision = self.decision(
            None, "memory from the nearest node", reason, user=user, warning=warning
        )
        return decision.replace(rejected=rejected or {"interleave": decision.reason})

    def load(self, document: Any) -> Interleave | None:
        """Return the policy that a saved plan holds."""
        if document is None:
            return None
        (nodes,) = fields(document, "interleave")
        return Interleave(interleave=numbers(nodes))

    def apply(self, torch: ModuleType, value: Interleave | None) -> InterleavedMemory | None:
        """Report the memory policy that the launcher has set, if the plan interleaves memory."""
        return None if value is None else InterleavedMemory(value.interleave)

    def apply_now(
        self, torch: ModuleType, decision: Decision[Interleave | None]
    ) -> InterleavedMemory | None:
        """Set the policy of this thread; existing pages stay where they are.

        Raises:
            RefusedError: The kernel refuses it.
        """
        if decision.value is not None:
            problem = interleave(decision.value.interleave)
            if problem:
                raise RefusedError(problem.partition(";")[0])
        return self.apply(torch, decision.value)


class InterleavedMemory:
    """The memory policy of this process, interleaved over nodes."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes

    def describe(self) -> str:
        # the kernel may have refused it, or the script changed it
        return _says(self._nodes) if _is_interleaved() else ""

    def undo(self) -> None:
        interleave(())


def _says(nodes: Sequence[int]) -> str:
    return f"memory interleaved over nodes {', '.join(map(str, nodes))}"


def interleave(nodes: Sequence[int]) -> str:
    """Interleave the memory of this thread, and of threads it starts, over NUMA nodes.

    Args:
        nodes: NUMA nodes; empty restores the default policy, the nearest node.

    Returns:
        The reason for which the policy could not be set, or "".
    """
    import ctypes

    syscall_number = SET_MEMPOLICY.get(os.uname().machine)
    if syscall_number is None:
        return f"memory policies are not supported on {os.uname().machine}; continuing without"
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    num_words = max(nodes, default=0) // bits + 1
    mask = (ctypes.c_ulong * num_words)()
    for node in nodes:
        mask[node // bits] |= 1 << node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    mode = MPOL_INTERLEAVE if nodes else MPOL_DEFAULT
    # the kernel reads one bit less than the given length, a bug as old as the call
    if libc.syscall(syscall_number, mode, mask, num_words * bits + 1) == 0:
        return ""
    error = ctypes.get_errno()
    return (
        f"interleaved memory was refused ({os.strerror(error)}"
        f"{', as in containers without CAP_SYS_NICE' if error == 1 else ''}); continuing without it"
    )


def _is_interleaved() -> bool:
    import ctypes

    number = GET_MEMPOLICY.get(os.uname().machine)
    mode = ctypes.c_int()
    if number is None:
        return False
    answer = ctypes.CDLL(None).syscall(number, ctypes.byref(mode), None, 0, None, 0)
    return bool(answer == 0 and mode.value & MODE_MASK == MPOL_INTERLEAVE)


SETTING = MemoryPolicySetting()
