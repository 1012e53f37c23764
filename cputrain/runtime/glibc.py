"""glibc's malloc in this process: its thresholds, what it holds, and giving memory back.

`mallopt` acts on this process alone. Variables such as MALLOC_TRIM_THRESHOLD_ would reach every
child, where they cost memory and address space.
"""

from __future__ import annotations

import ctypes

from cputrain.errors import LaunchError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4
"""mallopt's parameters, from malloc.h."""

LARGEST = (1 << 31) - 1
"""mallopt takes an int. Single blocks above are left to mmap: with none allowed (M_MMAP_MAX 0)
they cut holes into the heap, which took twice the memory."""

NEVER = -1
"""Of M_TRIM_THRESHOLD: the end of the heap is not given back by itself. The largest number gave
some of it back at random, as steps that free more than 2 GiB showed."""

TOP_PAD_BYTES = 16 << 20
"""How much more than needed the heap grows by, while it keeps memory."""

DEFAULTS = {
    M_MMAP_THRESHOLD: 32 << 20,
    M_TRIM_THRESHOLD: 64 << 20,
    M_TOP_PAD: 128 << 10,
    M_MMAP_MAX: 65536,
}
"""What glibc's thresholds grow to by themselves; once one is set, none grows any more."""

LARGEST_ABANDONED_BYTES = 1 << 30
SMALLEST_ABANDONED_BYTES = 1 << 20

MADV_HUGEPAGE = 14


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


class Malloc:
    """glibc's malloc.

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
        """Serve large blocks from the heap, and keep what is freed there.

        Args:
            trim_threshold_bytes: What may be free at the end of the heap before glibc returns it;
                from 2 GiB on, it never does.
        """
        mallopt = self._libc.mallopt
        if trim_threshold_bytes > LARGEST:
            trim_threshold_bytes = NEVER
        mallopt(M_TRIM_THRESHOLD, trim_threshold_bytes)
        mallopt(M_TOP_PAD, TOP_PAD_BYTES)
        # up to glibc 2.34 a threshold above 32 MiB is refused, and only "never mmap" is left
        if mallopt(M_MMAP_THRESHOLD, LARGEST) != 1:
            mallopt(M_MMAP_MAX, 0)

    def restore_defaults(self) -> None:
        """Set the thresholds that glibc reaches by itself."""
        for parameter, value in DEFAULTS.items():
            self._libc.mallopt(parameter, value)

    def trim(self) -> None:
        """Return every free page to the kernel, in the middle of the heap too."""
        self._libc.malloc_trim(0)

    def abandon(self) -> None:
        """Return all that was kept, and serve nothing from it any more.

        The free blocks in the middle of the heap are allocated, untouched, for ever: what would be
        served from them would stay there when it is freed, where python's malloc returns it.
        """
        libc = self._libc
        libc.malloc_trim(0)
        libc.mallopt(M_MMAP_THRESHOLD, SMALLEST_ABANDONED_BYTES)
        heap_end = int(libc.sbrk(0) or 0)
        size = LARGEST_ABANDONED_BYTES
        while size >= SMALLEST_ABANDONED_BYTES:
            address = libc.malloc(size)
            if address is None or address >= heap_end:  # no free block is so large: it is mapped
                libc.free(address)
                size //= 2
        self.restore_defaults()

    def in_use_bytes(self) -> int | None:
        """Return the bytes that are allocated; None before glibc 2.33."""
        if not hasattr(self._libc, "mallinfo2"):
            return None
        info = self._libc.mallinfo2()
        return int(info.uordblks + info.hblkhd)

    def advise_huge_pages(self) -> bool:
        """Ask for huge pages where the heap has grown; return whether the kernel agreed.

        Pages that are there stay as they are until they are returned and touched again.
        """
        end = int(self._libc.sbrk(0) or 0)
        if end == self._advised_end:
            return True
        ranges = _heap_ranges()
        agreed = [self._libc.madvise(begin, size, MADV_HUGEPAGE) == 0 for begin, size in ranges]
        self._advised_end = end
        return bool(agreed) and all(agreed)


def _heap_ranges() -> list[tuple[int, int]]:
    """Return address and size of each mapping of the heap."""
    ranges = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if line.rstrip().endswith("[heap]"):
                begin, _, end = line.partition(" ")[0].partition("-")
                ranges.append((int(begin, 16), int(end, 16) - int(begin, 16)))
    return ranges
