"""Going on in the middle of an epoch, without making again what has been consumed."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from cputrain.data.order import as_list, is_known, known_batches
from cputrain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

VERSION = 1


class Position:
    """Where a loader is: how many batches of which epoch it has handed out."""

    def __init__(
        self,
        *,
        batches: int,
        random: torch.Tensor,
        generators: list[torch.Tensor],
        begins: bool,
        dataset: Any = None,
    ) -> None:
        self.batches = batches
        self.random = random
        """torch's random state before the epoch."""
        self.generators = generators
        """Those of the loader and its samplers."""
        self.begins = begins
        """Whether the epoch began with new workers, for which torch draws a seed."""
        self.dataset = dataset
        """What an iterable dataset says of itself."""

    @classmethod
    def before_epoch(cls, loader: DataLoader[Any]) -> Position:
        """Where a loader is when an epoch is about to begin."""
        return cls(
            batches=0,
            random=torch.get_rng_state(),
            generators=[generator.get_state() for generator in _generators(loader)],
            begins=loader._iterator is None,
        )

    def rewind(self, loader: DataLoader[Any]) -> None:
        """Set the random states to where the epoch's rows were drawn."""
        torch.set_rng_state(self.random)
        for generator, state in zip(_generators(loader), self.generators, strict=True):
            generator.set_state(state)
        if self.begins:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def document(self) -> dict[str, Any]:
        """As a state that torch.save can write."""
        return {
            "version": VERSION,
            "batches": self.batches,
            "random": self.random,
            "generators": list(self.generators),
            "begins": self.begins,
            "dataset": self.dataset,
        }

    @classmethod
    def read(cls, document: Any, loader: DataLoader[Any]) -> Position:
        """From a state; an error that says what is wrong with it."""
        advice = "Pass what state_dict() of a loader with the same arguments returned."
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise UsageError(
                "load_state_dict(state)",
                f"must be a state of version {VERSION}",
                found=repr(document)[:60],
                do=advice,
            )
        try:
            position = cls(
                batches=int(document["batches"]),
                random=torch.as_tensor(document["random"], dtype=torch.uint8),
                generators=[torch.as_tensor(s, dtype=torch.uint8) for s in document["generators"]],
                begins=bool(document["begins"]),
                dataset=document["dataset"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                "load_state_dict(state)", "is incomplete", found=repr(error), do=advice
            ) from None
        if len(position.generators) != len(_generators(loader)) or position.batches < 0:
            raise UsageError(
                "load_state_dict(state)",
                "must fit the loader",
                found=f"{len(position.generators)} generators and {position.batches} batches, for "
                f"a loader with {len(_generators(loader))} generators",
                do=advice,
            )
        return position


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The loader's own and its samplers', once each."""
    found: list[torch.Generator] = []
    for owner in (loader, loader.batch_sampler, loader.sampler):
        for thing in (owner, getattr(owner, "sampler", None)):
            generator = getattr(thing, "generator", None)
            if generator is None or not isinstance(generator, torch.Generator):
                continue
            if all(generator is not known for known in found):
                found.append(generator)
    return found


class ResumedSampler:
    """Lists rows from the middle of an epoch on, the first time; afterwards whole epochs."""

    def __init__(self, loader: DataLoader[Any], position: Position) -> None:
        self._loader = loader
        self._sampler: Any = loader._index_sampler
        self._position: Position | None = position

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        position, self._position = self._position, None
        if position is None:
            yield from self._sampler
            return
        position.rewind(self._loader)
        if not is_known(self._sampler):
            yield from islice(iter(self._sampler), position.batches, None)
            return
        for rows in islice(known_batches(self._sampler), position.batches, None):
            yield as_list(rows)


class StandIn:
    """A loader with some attributes changed, for the making of an iterator."""

    def __init__(self, loader: DataLoader[Any], **changed: Any) -> None:
        self.__dict__.update(changed)
        self.__dict__["_loader"] = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)
