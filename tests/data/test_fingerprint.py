"""The key of a dataset: the same in another process, another one for other code or attributes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cputrain.data.fingerprint import Fingerprint, NoKeyError

OF_ALL_KINDS = """
import collections, dataclasses, enum, functools, logging, pathlib, random, re
import numpy as np
import torch

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Options:
    names: list = dataclasses.field(default_factory=list)
    kinds: frozenset = frozenset(("b", "a", "c", int, len))

class Slots:
    __slots__ = ("one", "other")
    def __init__(self):
        self.one = 1

@functools.lru_cache
def cached(number):
    return number + SHIFT

SHIFT = 3
TABLE = {"a": 1, "b": {"c", "d", "e"}}

class Base:
    shape: tuple[int, int] = (3, 4)
    @staticmethod
    def helper(x): return cached(x)
    @classmethod
    def made(cls): return cls()
    @property
    def length(self): return len(TABLE)

class Data(Base):
    def __init__(self):
        self.options = Options(["x"])
        self.slots = Slots()
        self.colour = Colour.RED
        self.path = pathlib.Path("a/b")
        self.pattern = re.compile("x+")
        self.log = logging.getLogger("x")
        self.arrays = [np.arange(6).reshape(2, 3), np.array(["a", None], object), np.float32(2)]
        self.tensors = {"t": torch.arange(3.0), "dtype": torch.float16}
        self.ordered = collections.OrderedDict(a=1)
        self.default = collections.defaultdict(list, a=[1])
        self.deque = collections.deque([1, 2], maxlen=3)
        self.generators = [random.Random(1), np.random.default_rng(1), torch.Generator()]
        self.scale = functools.partial(cached, 3)
        self.inner = lambda row: row * SHIFT
        self.module = torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.ones_(self.module.weight)
        self.method = self.__getitem__
        self.itself = self
        self.many = [(f"file {row}", row) for row in range(200)]
    def __getitem__(self, row):
        return [self.inner(one) for one in range(row)]
"""

PRINTING = """
from cputrain.data.fingerprint import Fingerprint
print(Fingerprint(Data(), by_identity=False).key)
"""


def _key_in_a_process(tmp_path: Path, code: str, seed: int) -> str:
    script = tmp_path / "script.py"
    script.write_text(code + PRINTING)
    ended = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
    )
    return ended.stdout.strip()


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    keys = {_key_in_a_process(tmp_path, OF_ALL_KINDS, seed) for seed in (1, 2)}
    assert len(keys) == 1


CHANGES = [
    ("row * SHIFT", "row + SHIFT"),
    ("SHIFT = 3", "SHIFT = 4"),
    ("RED = 1", "RED = 2"),
    ('["x"]', '["y"]'),
    ("self.one = 1", "self.one = 2"),
    ("number + SHIFT", "number - SHIFT"),
    ('"d", "e"', '"d", "f"'),
    ("return cached(x)", "return x"),
    ("return len(TABLE)", "return 1"),
    ('"a/b"', '"a/c"'),
    ('"x+"', '"x*"'),
    ("reshape(2, 3)", "reshape(3, 2)"),
    ("arange(3.0)", "arange(3)"),
    ("torch.float16", "torch.float32"),
    ("OrderedDict(a=1)", "OrderedDict(a=2)"),
    ("defaultdict(list", "defaultdict(tuple"),
    ("maxlen=3", "maxlen=4"),
    ("partial(cached, 3)", "partial(cached, 4)"),
    ("ones_(self", "zeros_(self"),
    ("range(200)", "range(201)"),
    ('f"file {row}"', 'f"file{row}"'),
    ("for one in range(row)", "for one in range(row + 1)"),
    ("(3, 4)", "(3, 5)"),
    ("class Data(Base)", "class Data(Base, dict)"),
]


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "script_of_a_test", sys.modules[__name__])


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_it_is_another_one_for_whatever_changes(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert before in OF_ALL_KINDS
    keys = set()
    for code in (OF_ALL_KINDS, OF_ALL_KINDS.replace(before, after), OF_ALL_KINDS):
        space: dict[str, Any] = {"__name__": "script_of_a_test"}
        exec(code, space)
        keys.add(Fingerprint(space["Data"](), by_identity=False).key)
    assert len(keys) == 2


class Unwilling:
    def __getstate__(self) -> Any:
        raise ValueError


class Holding:
    def __init__(self, thing: Any) -> None:
        self.thing = thing


@pytest.mark.parametrize(
    "thing", [threading.Lock(), sys.stdout, iter([1]), torch.zeros(3).to_sparse(), Unwilling()]
)
def test_what_cannot_be_known_is_named(thing: Any) -> None:
    with pytest.raises(NoKeyError, match=r"dataset\.thing"):
        Fingerprint(Holding(thing), by_identity=False)


def test_in_one_process_an_unknown_object_is_itself() -> None:
    lock = threading.Lock()
    key = Fingerprint(Holding(lock), by_identity=True).key
    assert Fingerprint(Holding(lock), by_identity=True).key == key
    assert Fingerprint(Holding(threading.Lock()), by_identity=True).key != key


def test_what_processes_share_has_no_key() -> None:
    shared = multiprocessing.Array("i", 4)
    held = np.frombuffer(shared.get_obj(), np.int32)
    for thing in (torch.zeros(3).share_memory_(), shared, held, held[1:]):
        for by_identity in (False, True):
            with pytest.raises(NoKeyError, match="shared with other processes"):
                Fingerprint(Holding(thing), by_identity=by_identity)


def test_generators_and_names_are_found() -> None:
    found = Fingerprint(Holding([np.random.default_rng(0), len]), by_identity=False)
    assert [type(one) for one in found.generators] == [np.random.Generator]
