"""Use cputrain's iterators in every DataLoader of the script."""

from __future__ import annotations

from cputrain.counting import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class Loaders:
    """Patch of DataLoader._get_iterator, which reaches subclasses and re-created loaders too."""

    def __init__(self, torch: ModuleType) -> None:
        from torch.utils.data import DataLoader

        loader_class: Any = DataLoader
        self._torch = torch
        self._loader_class, self._original = loader_class, loader_class._get_iterator
        self._statistics: dict[int, Any] = {}

        def get_iterator(loader: Any) -> Any:
            try:
                return self._iterator(loader)
            except BaseException as error:
                from cputrain.data.torch_step import hide_frames

                hide_frames(error)
                raise

        self._replacement = get_iterator
        loader_class._get_iterator = get_iterator

    def _iterator(self, loader: Any) -> Any:
        from cputrain.errors import CputrainError

        if loader.num_workers:
            loader.check_worker_number_rationality()  # which warns, as torch does here
        rng_state = self._torch.get_rng_state()
        generator_state = None if loader.generator is None else loader.generator.get_state()
        try:
            from cputrain.data import iterator_of, listen, statistics_of

            listen(self._ignore_message)
            iterator = iterator_of(loader)
        except CputrainError:
            raise
        except Exception as error:  # the fault may be the script's: torch's iterator then raises it
            self._torch.set_rng_state(rng_state)
            if generator_state is not None:
                loader.generator.set_state(generator_state)
            iterator = self._original(loader)
            self._report_fault(error)
            return iterator
        statistics = statistics_of(loader)
        self._statistics[id(statistics)] = statistics
        return iterator

    def _ignore_message(self, message: str) -> None:
        """Ignore a message of a loader: `describe` reports at the end of the run."""

    def _report_fault(self, error: Exception) -> None:
        import sys

        if sys.stderr is not None:
            print(
                f"cputrain: [internal] a DataLoader is left to torch: {type(error).__name__}: "
                f"{' '.join(str(error).split())}. Please report this; --loader off avoids it.",
                file=sys.stderr,
            )

    def describe(self) -> str:
        texts = {
            "memory": "gathered from memory",
            "workers": "sharing memory with its workers",
        }
        parts = []
        for path, text in texts.items():
            count = sum(statistics.path == path for statistics in self._statistics.values())
            if count:
                parts.append(f"{count} {text if count == 1 else text.replace('its', 'their')}")
        if not parts:
            return ""
        spared = sum(statistics.spared for statistics in self._statistics.values())
        note = f", {counted(spared, 'worker')} not needed" if spared else ""
        return f"data loaders: {', '.join(parts)}{note}"

    def undo(self) -> None:
        if self._loader_class._get_iterator is self._replacement:
            self._loader_class._get_iterator = self._original
