"""Updates only the rows of a large table that a gradient touches.

An embedding's gradient is zero but for the rows that were looked up. Where an optimizer leaves a
number as it is when its gradient is zero, as Adagrad does and SGD without momentum, the rest of the
table need not be read and written. What the script sees of gradients, states and weights is the
same to the last bit.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Lists = list[list[Any]]

STATES = {"adagrad": 1, "sgd": 0}
"""How many numbers for each element these keep, which lie in the first of their states."""

LARGE = 1 << 18
"""Elements of a table that is worth looking at."""

LOOKED_AT = 256
"""Rows that tell whether most of a gradient is zero."""

FEW = 0.25
"""Part of the rows that may be touched: gathering and putting back costs, too."""


class TouchedRows:
    """Narrows what an update is given, and puts back what came of it."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self.tables: set[int] = set()
        """Those that were narrowed."""

    def narrowed(
        self, name: str, lists: Lists, options: dict[str, Any]
    ) -> tuple[Lists, Callable[[], None]]:
        """The tensors to update in place of these, and what to call afterwards.

        `lists` are parameters, gradients and states, as a function of torch.optim is given them.
        """
        if name not in STATES or not _leaves_zeros(name, options):
            return lists, _nothing
        lists = [list(one) for one in lists]
        params, grads, *states = lists
        columns = [params, *states[: STATES[name]]]
        narrow: list[tuple[Any, Any, Any]] = []
        for place, param in enumerate(params):
            tables = [column[place] for column in columns]
            if not all(self._is_table(one, param) for one in (grads[place], *tables)):
                continue
            rows = self._rows(grads[place])
            if rows is None:
                continue
            self.tables.add(id(param))
            grads[place] = grads[place].index_select(0, rows)
            for table, column in zip(tables, columns, strict=True):
                column[place] = table.detach().index_select(0, rows)
                narrow.append((table, rows, column[place]))
        if not narrow:
            return lists, _nothing

        def put_back() -> None:
            for table, rows, found in narrow:
                table.index_copy_(0, rows, found)

        return lists, put_back

    def _is_table(self, tensor: Any, param: Any) -> bool:
        return (
            type(tensor) in self._plain
            and tensor.is_cpu
            and tensor.layout is self._torch.strided
            and tensor.dim() == 2
            and tensor.numel() >= LARGE
            and tensor.is_floating_point()
            and tensor.is_contiguous()
            and tensor.shape == param.shape
            and tensor.dtype is param.dtype
        )

    def _rows(self, grad: Any) -> Any:
        """Those that are not all zeros; None where it is not worth it."""
        some = grad[:: max(1, len(grad) // LOOKED_AT)]
        if _are_touched(some).sum() > FEW * len(some):
            return None
        rows = _are_touched(grad).nonzero().squeeze(1)
        return rows if len(rows) <= FEW * len(grad) else None


def _leaves_zeros(name: str, options: dict[str, Any]) -> bool:
    """Whether a number whose gradient is zero stays as it is."""
    if options.get("weight_decay", 1) != 0:
        return False
    if name == "sgd":
        return bool(options.get("momentum", 1) == 0)
    return bool(options.get("eps", 0) > 0)  # 0 / 0, else


def _are_touched(grad: Any) -> Any:
    """Which rows are not all zeros: several times as fast as `grad.any(1)`."""
    return (grad.amax(1) != 0) | (grad.amin(1) != 0)


def _nothing() -> None:
    """Nothing is to be put back."""
