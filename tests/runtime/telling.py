"""Networks whose forward prints, by code in all places where a script may have it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from tests.runtime import script_helpers
from tests.runtime.script_helpers import say


class Printing(logging.Handler):
    """Prints messages."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage())


logger = logging.getLogger("telling")
logger.addHandler(Printing())
logger.propagate = False


class Plain(nn.Module):
    """A network that has `self.change` applied to its hidden values."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(torch.tanh(self.body(x))))  # type: ignore[no-any-return]

    def change(self, x: Tensor) -> Tensor:
        return x


def through_one(x: Tensor) -> Tensor:
    return through_two(x)


def through_two(x: Tensor) -> Tensor:
    return through_three(x)


def through_three(x: Tensor) -> Tensor:
    return through_four(x)


def through_four(x: Tensor) -> Tensor:
    return through_five(x)


def through_five(x: Tensor) -> Tensor:
    return through_six(x)


def through_six(x: Tensor) -> Tensor:
    print("six")
    return x


def printing(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @wraps(function)
    def print_and_call(x: Tensor) -> Tensor:
        print("decorated")
        return function(x)

    return print_and_call


@printing
def decorated(x: Tensor) -> Tensor:
    return x


class Teller:
    def tell(self, x: Tensor) -> Tensor:
        print("told")
        return x

    def __getitem__(self, x: Tensor) -> Tensor:
        return self.tell(x)

    def __enter__(self) -> None:
        print("entered")

    def __exit__(self, *_: object) -> None:
        print("left")

    @property
    def factor(self) -> int:
        print("asked")
        return 1

    @classmethod
    def of_the_class(cls, x: Tensor) -> Tensor:
        print("class")
        return x


class Made:
    def __init__(self, x: Tensor) -> None:
        print("made")
        self.x = x


@dataclass
class MadeLater:
    x: Tensor

    def __post_init__(self) -> None:
        print("made later")


class Told(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        print("forward")
        return x * 1

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        print("backward")
        return gradients[0]


class ToldBackward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        print("backward")
        return gradients[0]


teller = Teller()

by_name = {"teller": teller.tell, "say": say}


class PrintsByDeepCall(Plain):
    def change(self, x: Tensor) -> Tensor:
        return through_one(x)


class PrintsByModule(Plain):
    def change(self, x: Tensor) -> Tensor:
        return script_helpers.say(x)


class PrintsImported(Plain):
    def change(self, x: Tensor) -> Tensor:
        return say(x)


class PrintsDecorated(Plain):
    def change(self, x: Tensor) -> Tensor:
        return decorated(x)


class PrintsByObject(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.teller = Teller()

    def change(self, x: Tensor) -> Tensor:
        return self.teller.tell(x)


class PrintsByGlobalObject(Plain):
    def change(self, x: Tensor) -> Tensor:
        return teller.tell(x)


class PrintsIndexed(Plain):
    def change(self, x: Tensor) -> Tensor:
        return teller[x]


class PrintsInWith(Plain):
    def change(self, x: Tensor) -> Tensor:
        with teller:
            return x


class PrintsProperty(Plain):
    def change(self, x: Tensor) -> Tensor:
        return x * teller.factor


class PrintsByClass(Plain):
    def change(self, x: Tensor) -> Tensor:
        return Teller.of_the_class(x)


class PrintsMade(Plain):
    def change(self, x: Tensor) -> Tensor:
        return Made(x).x


class PrintsMadeLater(Plain):
    def change(self, x: Tensor) -> Tensor:
        return MadeLater(x).x


class PrintsFunction(Plain):
    def change(self, x: Tensor) -> Tensor:
        return Told.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class PrintsInBackward(Plain):
    def change(self, x: Tensor) -> Tensor:
        return ToldBackward.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class PrintsPartial(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.told = partial(say)

    def change(self, x: Tensor) -> Tensor:
        return self.told(x)


class PrintsInDictionary(Plain):
    def change(self, x: Tensor) -> Tensor:
        return by_name["teller"](x)


class PrintsByGlobalName(Plain):
    """Its method has the name of a global function that is none of this."""

    def change(self, x: Tensor) -> Tensor:
        return self.helper(x)

    def helper(self, x: Tensor) -> Tensor:
        print("method")
        return x


def helper(x: Tensor) -> Tensor:
    return x


class PrintsNested(Plain):
    def change(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return teller.tell(x)

        return inner(x)


class PrintsInLoop(Plain):
    def change(self, x: Tensor) -> Tensor:
        return torch.stack([say(part) for part in x])


class PrintsByText(Plain):
    def change(self, x: Tensor) -> Tensor:
        return getattr(teller, "te" + "ll")(x)  # type: ignore[no-any-return]


class PrintsAndCatches(Plain):
    def change(self, x: Tensor) -> Tensor:
        try:
            return say(x)
        except Exception:
            return x * 0


class PrintsMapped(Plain):
    def change(self, x: Tensor) -> Tensor:
        return torch.stack(list(map(say, x)))


class PrintsByOtherName(Plain):
    def change(self, x: Tensor) -> Tensor:
        tell_all("other")
        return x


tell_all = print


class PrintsByInstance(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.change = MethodType(lambda _, x: say(x), self)  # type: ignore[method-assign]


class PrintsWrites(Plain):
    def change(self, x: Tensor) -> Tensor:
        sys.stdout.write("written\n")
        return x


class PrintsLogs(Plain):
    def change(self, x: Tensor) -> Tensor:
        logger.warning("logged")
        return x


TELLING = [
    each for name, each in sorted(globals().items()) if name.startswith("Prints")
]  # fmt: skip
