"""Gives every DataLoader of the script our iterators, whatever class it is of."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "loader"


class Loaders:
    """Our iterators behind torch's own class: subclasses and re-created loaders have them too."""

    def __init__(self, torch: ModuleType) -> None:
        from torch.utils.data import DataLoader

        kind: Any = DataLoader
        self._torch = torch
        self._kind, self._torchs = kind, kind._get_iterator
        self._seen: dict[int, Any] = {}

        def get_iterator(loader: Any) -> Any:
            try:
                return self._iterator(loader)
            except BaseException as error:
                from cputrain.data.torch_step import hide_frames

                hide_frames(error)
                raise

        self._ours = get_iterator
        kind._get_iterator = get_iterator

    def _iterator(self, loader: Any) -> Any:
        from cputrain.errors import CputrainError

        if loader.num_workers:
            loader.check_worker_number_rationality()  # which warns, as torch does here
        random = self._torch.get_rng_state()
        state = None if loader.generator is None else loader.generator.get_state()
        try:
            from cputrain.data import iterator_of, listen, statistics_of

            listen(self._hear)
            iterator = iterator_of(loader)
        except CputrainError:
            raise
        except Exception as error:  # the script's fault, or ours: torch's iterator tells
            self._torch.set_rng_state(random)
            if state is not None:
                loader.generator.set_state(state)
            iterator = self._torchs(loader)
            self._say_ours(error)
            return iterator
        found = statistics_of(loader)
        self._seen[id(found)] = found
        return iterator

    def _hear(self, message: str) -> None:
        """What a loader says is told at the end of the run."""

    def _say_ours(self, error: Exception) -> None:
        import sys

        if sys.stderr is not None:
            print(
                f"cputrain: [internal] a DataLoader is left to torch: {type(error).__name__}: "
                f"{' '.join(str(error).split())}. Please report this; --loader off avoids it.",
                file=sys.stderr,
            )

    def describe(self) -> str:
        ways = {
            "memory": "gathered from memory",
            "workers": "sharing memory with its workers",
        }
        parts = []
        for path, said in ways.items():
            count = sum(found.path == path for found in self._seen.values())
            if count:
                parts.append(f"{count} {said if count == 1 else said.replace('its', 'their')}")
        if not parts:
            return ""
        spared = sum(found.spared for found in self._seen.values())
        note = f", {spared} workers not needed" if spared else ""
        return f"data loaders: {', '.join(parts)}{note}"

    def undo(self) -> None:
        if self._kind._get_iterator is self._ours:
            self._kind._get_iterator = self._torchs


def apply(torch: ModuleType, value: object) -> Loaders | None:
    """Wait for loaders to be iterated."""
    return Loaders(torch) if value else None
