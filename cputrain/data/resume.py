"""Positions of a loader within an epoch, and samplers that resume there."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from cputrain.counting import counted
from cputrain.data.order import as_list, has_known_order, iter_batch_rows
from cputrain.errors import UsageError, argument_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

VERSION = 1


class Position:
    """A position of a loader: the number of batches yielded, and the random states of the epoch."""

    def __init__(
        self,
        *,
        num_batches: int,
        torch_state: torch.Tensor,
        generator_states: list[torch.Tensor],
        is_new_iterator: bool,
        dataset_state: Any = None,
    ) -> None:
        self.num_batches = num_batches
        self.torch_state = torch_state
        """The state of torch's default generator before the epoch."""
        self.generator_states = generator_states
        """The states of the generators of the loader and its samplers before the epoch."""
        self.is_new_iterator = is_new_iterator
        """Whether the epoch created a new iterator, for which torch draws a seed."""
        self.dataset_state = dataset_state
        """The `state_dict` of an iterable dataset that has this method."""

    @classmethod
    def before_epoch(cls, loader: DataLoader[Any]) -> Position:
        """Return the position of a loader before its next epoch."""
        return cls(
            num_batches=0,
            torch_state=torch.get_rng_state(),
            generator_states=[generator.get_state() for generator in _generators(loader)],
            is_new_iterator=loader._iterator is None,
        )

    def rewind(self, loader: DataLoader[Any]) -> None:
        """Restore the random states that the epoch's rows were drawn with."""
        torch.set_rng_state(self.torch_state)
        for generator, state in zip(_generators(loader), self.generator_states, strict=True):
            generator.set_state(state)
        if self.is_new_iterator:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a dict that `torch.save` can write."""
        return {
            "version": VERSION,
            "batches": self.num_batches,
            "random": self.torch_state,
            "generators": list(self.generator_states),
            "begins": self.is_new_iterator,
            "dataset": self.dataset_state,
        }

    @classmethod
    def from_state_dict(cls, state: Any, loader: DataLoader[Any]) -> Position:
        """Return the position of a state; raise UsageError if it is invalid or does not fit."""
        advice = "Pass what state_dict() of a loader with the same arguments returned."
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise argument_error(state, dict)(
                "load_state_dict(state)",
                f"must be a state of version {VERSION}",
                found=repr(state)[:60],
                do=advice,
            )
        try:
            position = cls(
                num_batches=int(state["batches"]),
                torch_state=torch.as_tensor(state["random"], dtype=torch.uint8),
                generator_states=[
                    torch.as_tensor(s, dtype=torch.uint8) for s in state["generators"]
                ],
                is_new_iterator=bool(state["begins"]),
                dataset_state=state["dataset"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                "load_state_dict(state)", "is incomplete", found=repr(error), do=advice
            ) from None
        if len(position.generator_states) != len(_generators(loader)) or position.num_batches < 0:
            raise UsageError(
                "load_state_dict(state)",
                "must fit the loader",
                found=f"{counted(len(position.generator_states), 'generator')} and "
                f"{counted(position.num_batches, 'batch', 'batches')}, for a loader with "
                f"{counted(len(_generators(loader)), 'generator')}",
                do=advice,
            )
        return position


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """Return the distinct generators of a loader and its samplers."""
    generators: list[torch.Generator] = []
    for owner in (loader, loader.batch_sampler, loader.sampler):
        for holder in (owner, getattr(owner, "sampler", None)):
            generator = getattr(holder, "generator", None)
            if generator is None or not isinstance(generator, torch.Generator):
                continue
            if all(generator is not previous for previous in generators):
                generators.append(generator)
    return generators


class ResumedSampler:
    """A batch sampler whose first epoch starts at a position; later epochs are complete."""

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
        if not has_known_order(self._sampler):
            yield from islice(iter(self._sampler), position.num_batches, None)
            return
        for rows in islice(iter_batch_rows(self._sampler), position.num_batches, None):
            yield as_list(rows)


class LoaderProxy:
    """A loader with some attributes replaced, to create an iterator from.

    Args:
        loader: The loader; other attributes are read from it.
        attributes: The replaced attributes.
    """

    def __init__(self, loader: DataLoader[Any], **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_loader"] = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)
