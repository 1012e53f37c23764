"""Control of glibc's malloc in this process: thresholds, trimming and statistics.

`mallopt` acts on this process alone. Environment variables such as MALLOC_TRIM_THRESHOLD_ would be
inherited by every child process, where they cost memory and address space.
"""

from __future__ import annotations

import ctypes

from cputrain.errors import LaunchError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4
"""Parameters of mallopt, from malloc.h."""

MAX_INT = (1 << 31) - 1
"""Largest value that mallopt takes, which is an int.

Larger blocks are left to mmap: without mmap (M_MMAP_MAX 0) they fragment the heap, which took twice
the memory.
"""

NEVER = -1
"""Value of M_TRIM_THRESHOLD that disables trimming of the heap's end.

The largest int did not disable it: steps that free more than 2 GiB trimmed at random.
"""

TOP_PAD_BYTES = 16 << 20
"""Bytes by which the heap grows beyond a request, while freed memory is kept."""

DEFAULTS = {
    M_MMAP_THRESHOLD: 32 << 20,
    M_TRIM_THRESHOLD: 64 << 20,
    M_TOP_PAD: 128 << 10,
    M_MMAP_MAX: 65536,
}
"""Values up to which glibc adapts its thresholds; setting any of them ends the adaptation."""

LARGEST_ABANDONED_BYTES = 1 << 30
SMALLEST_ABANDONED_BYTES = 1 << 20
"""Sizes of the blocks by which `Malloc.abandon` occupies free memory of the heap."""

MADV_HUGEPAGE = 14
"""Advice of madvise, from sys/mman.h."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


class Malloc:
    """Interface to glibc's malloc of this process.

    Raises:
        LaunchError: The C library of this process has no mallopt.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not all(hasattr(libc, name) for name in ("mallopt", "malloc_trim", "sbrk")):
            raise LaunchError("the C library", "must be glibc", found="one without mallopt")
        libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
        libc.sbrk.argtypes, libc.sbrk.restype = (ctypes.c_ssize_t,), ctypes.c_void_p
        libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
        libc.free.argtypes = (ctypes.c_void_p,)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if hasattr(libc, "mallinfo2"):  # glibc 2.33
            libc.mallinfo2.restype = _Mallinfo2
        self._libc = libc
        self._advised_end = 0

    def keep(self, trim_threshold_bytes: int) -> None:
        """Allocate large blocks on the heap, and keep freed memory instead of returning it.

        Args:
            trim_threshold_bytes: Free memory at the end of the heap from which glibc returns it to
                the kernel; values of 2 GiB and more disable that.
        """
        mallopt = self._libc.mallopt
        if trim_threshold_bytes > MAX_INT:
            trim_threshold_bytes = NEVER
        mallopt(M_TRIM_THRESHOLD, trim_threshold_bytes)
        mallopt(M_TOP_PAD, TOP_PAD_BYTES)
        # glibc up to 2.34 refuses a threshold above 32 MiB: disable mmap instead
        if mallopt(M_MMAP_THRESHOLD, MAX_INT) != 1:
            mallopt(M_MMAP_MAX, 0)

    def restore_defaults(self) -> None:
        """Set the thresholds to the values that glibc adapts them to by default."""
        for parameter, value in DEFAULTS.items():
            self._libc.mallopt(parameter, value)

    def trim(self) -> None:
        """Return all free pages to the kernel, including those in the middle of the heap."""
        self._libc.malloc_trim(0)

    def abandon(self) -> None:
        """Return kept memory to the kernel, and never allocate from the heap's free blocks again.

        The free blocks in the middle of the heap are allocated forever, without touching them:
        memory allocated there would stay resident when it is freed, unlike memory by mmap.
        """
        libc = self._libc
        libc.malloc_trim(0)
        libc.mallopt(M_MMAP_THRESHOLD, SMALLEST_ABANDONED_BYTES)
        heap_end = int(libc.sbrk(0) or 0)
        size = LARGEST_ABANDONED_BYTES
        while size >= SMALLEST_ABANDONED_BYTES:
            address = libc.malloc(size)
            if address is None or address >= heap_end:  # mapped: no free block is that large
                libc.free(address)
                size //= 2
        self.restore_defaults()

    def in_use_bytes(self) -> int | None:
        """Return the number of allocated bytes; None before glibc 2.33."""
        if not hasattr(self._libc, "mallinfo2"):
            return None
        info = self._libc.mallinfo2()
        return int(info.uordblks + info.hblkhd)

    def advise_huge_pages(self) -> bool:
        """Request huge pages for the heap if it has grown; return whether the kernel accepted.

        Resident pages stay as they are until they are returned and touched again.
        """
        end = int(self._libc.sbrk(0) or 0)
        if end == self._advised_end:
            return True
        ranges = _heap_ranges()
        is_accepted = [
            self._libc.madvise(begin, size, MADV_HUGEPAGE) == 0 for begin, size in ranges
        ]
        self._advised_end = end
        return bool(is_accepted) and all(is_accepted)


def _heap_ranges() -> list[tuple[int, int]]:
    """Return address and size of each mapping of the heap."""
    ranges = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if line.rstrip().endswith("[heap]"):
                begin, _, end = line.partition(" ")[0].partition("-")
                ranges.append((int(begin, 16), int(end, 16) - int(begin, 16)))
    return ranges
