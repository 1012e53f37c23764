"""Generated uses of a pool, and what they do: results, errors, callbacks and their order."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, islice
from random import Random
from typing import Any

import numpy as np

METHODS = (
    "map", "map_async", "starmap", "starmap_async",
    "imap", "imap_unordered", "apply", "apply_async",
)  # fmt: skip
FUNCTIONS = (
    "plain",
    "method",
    "partial",
    "partial of object",
    "object",
    "builtin",
    "class",
    "raising",
)
SOURCES = (
    "list",
    "tuple",
    "generator",
    "changing itself",
    "changing function",
    "raising",
    "not any",
)
VALUES = ("number", "list", "array", "large array")
CHANGES = ("nothing", "items", "function", "container")
ERRORS = ("ValueError", "KeyError", "OSError", "custom", "reduced", "chained", "silent")


class CustomError(Exception):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first, second)
        self.second = second


class ReducedError(Exception):
    """Comes back as another one."""

    def __reduce__(self) -> Any:
        return ValueError, ("was reduced",)


class SilentError(Exception):
    def __str__(self) -> str:
        return ""


def plain(item: Any, *more: Any, **named: Any) -> Any:
    """What is in an item, whatever that is."""
    if isinstance(item, np.ndarray):
        return [float(item.sum()), *map(plain, more)]
    return [item, *map(plain, more), *sorted(named.items())]


def raising(kind: str, bad: Any, item: Any, *more: Any, **named: Any) -> Any:
    value = plain(item)[0]
    if (value[0] if isinstance(value, list) else value) == bad:
        if kind == "custom":
            raise CustomError(item if isinstance(item, int) else "item", 2)
        if kind == "reduced":
            raise ReducedError("never seen")
        if kind == "silent":
            raise SilentError("never said")
        if kind == "chained":
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error
        raise {"ValueError": ValueError, "KeyError": KeyError, "OSError": OSError}[kind](2, "words")
    return plain(item, *more, **named)


class Stateful:
    """A function with a state, which a call changes and the script does, too."""

    def __init__(self) -> None:
        self.state = 0
        self.more = np.zeros(4)

    def method(self, item: Any, *more: Any, **named: Any) -> Any:
        self.state += 1000  # of a copy, each time of a new one
        return [self.state, float(self.more.sum()), plain(item, *more, **named), item is self]

    __call__ = method


class Instance:
    """A class is called, too."""

    def __init__(self, item: Any, *more: Any, **named: Any) -> None:
        self.made_of = plain(item, *more, **named)

    def __repr__(self) -> str:
        return f"Instance({self.made_of})"


@dataclass(frozen=True)
class Case:
    """One use of a pool."""

    method: str
    function: str
    source: str
    value: str
    count: int
    chunksize: int | None
    change: str
    error: str
    bad: int
    has_callbacks: bool
    is_partly_consumed: bool

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self).items())


def generate(seed: str) -> Case:
    """Draw a case."""
    draws = Random(seed)
    method = draws.choice(METHODS)
    change = draws.choice(CHANGES)
    is_lazy = method.startswith("imap")
    return Case(
        method=method,
        function=draws.choice(FUNCTIONS),
        source=draws.choice(SOURCES),
        value=draws.choice(VALUES[:3] if change != "nothing" else VALUES),
        count=draws.choice((0, 1, 2, 5, 9, 24)),
        chunksize=draws.choice((1, 1, 2, 3, 7) if is_lazy else (None, 1, 2, 3, 7)),
        change=change,
        error=draws.choice(ERRORS),
        bad=draws.randrange(24),
        has_callbacks=draws.random() < 0.5,
        is_partly_consumed=draws.random() < 0.2,
    )


def reduce(case: Case, differs: Callable[[Case], bool]) -> Case:
    """Return a simpler case that still differs."""
    simpler: dict[str, tuple[Any, ...]] = {
        "count": (1, 2, 5, 9),
        "chunksize": (1,),
        "value": ("number", "list", "array"),
        "change": ("nothing",),
        "function": ("plain", "method"),
        "source": ("list", "generator"),
        "has_callbacks": (False,),
        "is_partly_consumed": (False,),
        "error": ("ValueError",),
    }
    for name, values in simpler.items():
        for value in values:
            if getattr(case, name) == value:
                break
            if differs(smaller := replace(case, **{name: value})):
                case = smaller
                break
    return case


def observe(case: Case, pool: Any) -> list[Any]:
    """Carry a case out; what could be seen of it, in order."""
    seen: list[Any] = []
    state = Stateful()
    function = _function(case, state)
    items = [_value(case.value, number) for number in range(case.count)]
    is_star = case.method.startswith("starmap")
    source = _source(case, items, state, is_star=is_star)
    options: dict[str, Any] = {}
    if case.has_callbacks and case.method.endswith("_async"):
        options["callback"] = lambda value: seen.append(("called back", _described(value)))
        options["error_callback"] = lambda error: seen.append(("failed", _described(error)))
    call = getattr(pool, case.method)
    try:
        if case.method.startswith("apply"):
            item = items[0] if items else None
            result = call(function, (item,), {"named": 1} if case.count > 2 else {}, **options)
        else:
            result = call(function, source, case.chunksize, **options)
    except Exception as error:
        return [*seen, ("call raised", _described(error))]
    if case.change != "nothing":
        time.sleep(0.05)  # in which multiprocessing packs as much as fits into its pipe
        _change(case, items, state, source)
    if case.method in ("imap", "imap_unordered"):
        return [*seen, *_iterated(case, iter(result))]
    if case.method.endswith("_async"):
        try:
            seen.append(("got", _described(result.get(30))))
        except Exception as error:
            seen.append(("get raised", _described(error)))
        seen.append((result.ready(), result.successful()))
    else:
        seen.append(("got", _described(result)))
    return seen


def _iterated(case: Case, results: Iterator[Any]) -> list[Any]:
    seen: list[Any] = []
    most = case.count // 2 if case.is_partly_consumed else case.count + 2
    for _ in range(most):
        try:
            seen.append(("got", _described(next(results))))
        except StopIteration:
            seen.append(("end",))
            break
        except Exception as error:
            seen.append(("next raised", _described(error)))
            if case.chunksize != 1:
                break  # after which multiprocessing's gives no more
    if case.method == "imap_unordered":
        if case.is_partly_consumed or (case.chunksize != 1 and any("raised" in s[0] for s in seen)):
            return [len(seen) > 0]  # which of them come first is a matter of time
        seen.sort(key=repr)
    return seen


def _described(thing: Any) -> Any:
    if isinstance(thing, BaseException):
        cause = type(thing.__cause__).__name__
        said = str(thing.__cause__).strip().splitlines()
        # the worker's traceback: the exception's own lines, wherever the pool's own are
        return type(thing).__qualname__, str(thing), thing.args, cause, said[-2:-1]
    return repr(thing)


def _value(kind: str, number: int) -> Any:
    if kind == "list":
        return [number, [number]]
    if kind == "array":
        return np.full(3, number, dtype=float)
    if kind == "large array":
        return np.full(40_000, number, dtype=float)
    return number


def _function(case: Case, state: Stateful) -> Any:
    return {
        "plain": plain,
        "method": state.method,
        "partial": partial(plain, 7),
        "partial of object": partial(state, state.more),
        "object": state,
        "builtin": operator.length_hint if case.value == "list" else operator.truth,
        "class": Instance,
        "raising": partial(raising, case.error, case.bad),
    }[case.function]


def _source(case: Case, items: list[Any], state: Stateful, *, is_star: bool) -> Any:
    def wrapped(item: Any) -> Any:
        return (item, 1) if is_star else item

    def generated() -> Iterator[Any]:
        same = [0, [0]]
        for number, item in enumerate(items):
            if case.source == "raising" and number == case.bad:
                raise LookupError("no more items", number)
            if case.source == "changing function":
                state.state = number
                state.more[:] = number
            if case.source == "changing itself":
                same[0], same[1] = number, [number]
                item = same
            yield wrapped(item)

    if case.source == "not any":
        return 5
    if case.source in ("list", "tuple"):
        return (list if case.source == "list" else tuple)(map(wrapped, items))
    return generated()


def _change(case: Case, items: list[Any], state: Stateful, source: Any) -> None:
    if case.change == "items":
        for item in items:
            if isinstance(item, list):
                item[0] = -1
            elif isinstance(item, np.ndarray):
                item[:] = -1
    if case.change == "function":
        state.state = -1
        state.more[:] = -1
    if case.change == "container" and isinstance(source, list):
        source[:] = [-1] * 3


def endless(pool: Any, seed: str) -> tuple[list[Any], list[Any]]:
    """The first results of items without end, and what they should be."""
    draws = Random(seed)
    name = draws.choice(("imap", "imap_unordered"))
    size, ahead, wanted = draws.choice((1, 2, 5)), draws.choice((None, 1, 30)), draws.randrange(60)
    results = getattr(pool, name)(plain, count(), size, ahead=ahead)
    got = list(islice(results, wanted))
    results.close()
    if name == "imap_unordered":  # any of those that were taken
        return [len(got), len(set(map(repr, got)))], [wanted, wanted]
    return got, list(islice(map(plain, count()), wanted))
