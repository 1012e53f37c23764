# ruff: noqa: E501
"""Generated scripts around a DataLoader, run with torch's iterators and with ours, and reduced.

A case is a list of lines of Python. Each runs by itself, and what it raises is a part of the
result: the next one runs all the same. All that can be told is noted after each line: the batch,
what shares memory with what, the error and its frames, the state of every random generator.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import math
import os
import pickle
import random
import re
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data

import cputrain.data
from cputrain.data.strategy import columns_of_loader
from cputrain.runtime.loader import Loaders
from tests.data import case_datasets

Lines = list[str]

HEADER = """\
import copy, io, pickle, random
import numpy as np
import torch
from torch.utils.data import *
from tests.data.case_datasets import *
"""

N = 12

gc.freeze()  # each case collects what it has left, and torch itself is much to look through

LOADER_FILE = cputrain.data.loader.__file__

COLUMNS = (
    "torch.arange({n}*6.).view({n}, 3, 2)", "torch.arange({n}) * 7", "torch.rand({n}, 4)",
    "torch.rand({n}, 2, 3, 2, 2)", "torch.rand({n}, 1, 3, 1, 1)", "torch.rand({n}, 4).double()",
    "torch.rand({n}, 2, 3, 2, 2).permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)",
    "torch.rand({n}, 3, 2, 2).contiguous(memory_format=torch.channels_last)",
    "torch.rand(5, {n}).t()", "torch.rand(3).expand({n}, 3)", "torch.rand(2*{n}, 4)[::2, 1:]",
    "torch.rand({n}, 0)", "torch.rand({n}, 0, 2)", "torch.rand({n}, 1)", "torch.rand({n}, 1, 1)",
    "torch.arange({n}).to(torch.uint8)", "torch.rand({n}, 2).bfloat16()", "torch.rand({n}) > 0.5",
    "torch.rand({n}, 2).to(torch.complex64)", "torch.rand({n}, 2).to(torch.complex64).conj()",
    "torch.rand({n}, 2).to(torch.complex64).conj().imag", "torch.arange({n}).to(torch.uint16)",
    "torch.rand({n}, 2).to(torch.float8_e4m3fn)", "torch.rand({n}, 2, requires_grad=True)",
    "torch.rand({n}, 2).as_subclass(Kept)", "torch.nn.Parameter(torch.rand({n}, 2))",
    "torch.rand({n}, 2).share_memory_()", "torch.rand({n}, 2).to_sparse()",
    "torch.rand({n}, 70)", "torch.rand({n}, 3, 2)",
)  # fmt: skip

ARRAYS = (
    "np.arange({n}*3.).reshape({n}, 3)", "np.asfortranarray(np.arange({n}*3).reshape({n}, 3))",
    "np.arange({n}, dtype=np.float32)", "np.arange({n}*2.).reshape({n}, 2)[::-1]",
    "np.arange({n}*2, dtype='>i4').reshape({n}, 2)", "np.array([str(i) for i in range({n})])",
    "np.arange({n}*2, dtype=np.uint8).reshape({n}, 2)", "np.zeros(({n}, 2, 0))",
    "np.broadcast_to(np.arange(3.), ({n}, 3))", "np.ones(({n}, 2), dtype=bool)",
)  # fmt: skip

LISTS = (
    "list(torch.rand({n}, 3))", "[torch.rand(2, dtype=[torch.float32, torch.float64][i % 2]) for i in range({n})]",
    "[torch.ones(2, dtype=[torch.float64, torch.float32][i % 2]) for i in range({n})]",
    "[torch.ones(2, dtype=[torch.int64, torch.float32][i // 3 % 2]) for i in range({n})]",
    "list(np.ones(({n}, 2)))", "tuple(torch.arange({n}))", "list(range({n}))",
    "[dict(x=torch.rand(2), y=i, z=str(i)) for i in range({n})]", "[(i, i / 2) for i in range({n})]",
    "['a' * i for i in range({n})]", "[torch.rand(1 + i // 8) for i in range({n})]",
    "[torch.rand(2, requires_grad=i == 4) for i in range({n})]", "[torch.rand(2, 3).t() for i in range({n})]",
    "[torch.rand(2, 3, 2, 2).to(memory_format=torch.channels_last) for i in range({n})]",
    "[torch.rand(2).share_memory_() for i in range({n})]", "[torch.rand(2).as_subclass(Kept) for i in range({n})]",
    "[torch.rand(2)] * {n}", "list(torch.rand({n}, 2, requires_grad=True))",
)  # fmt: skip

INDICES = (
    "[5, 3, 3, 11, 0, 7, 1]", "range({n})", "range({n} - 1, 1, -2)", "torch.randperm({n})",
    "np.random.permutation({n})", "[-1, 4, -{n}, 2]", "list(range({n}))", "(1, 2, 5, 0, 4)",
    "[np.int64(3), np.int64(0), 2, 4]", "[True, False, 2, 3]", "torch.tensor([4, -1, 0])",
    "torch.arange({n}).to(torch.uint8)", "[1.0, 2.0]", "[3, 40, 1]", "list(torch.randperm({n}))",
    "np.arange({n}, dtype=np.uint8)", "range(2, 9)", "collections_deque", "np.arange({n})[::-1]",
)  # fmt: skip

BATCH_SAMPLERS = (
    "[[0, 1], [2, 99], [3, 4]]", "[(0, 1), (4, 2)]", "[range(3), range(4, 2, -1)]", "[[], [1]]",
    "[torch.tensor([1, 2]), torch.tensor([4])]", "[np.arange(2), np.arange(3)]",
    "[[-1, 0], [-3, 2]]", "[[1, 1, 1], [1]]", "[[True, False], [1]]", "[[np.int64(2), 3]]",
    "[[1.0], [2]]", "[['x'], [2]]", "[[torch.tensor(3), 1]]", "[{1, 2}, [3]]", "[[2**70]]",
    "[slice(0, 3)]", "[[[0, 1]], [2]]", "[[-40], [0]]", "Batches([[0, 1], [2], [3]], 2)",
    "Batches([[0, 1], [2], [3]], 0)", "Batches([[0], [1], [2], [3], [4], [5], [6], [7]], 6)",
    "NoOrder()", "[None]", "[5, 6]", "[[np.int32(2)], [np.uint8(3)], [np.bool_(1)]]",
)  # fmt: skip

SAMPLERS = (
    "SequentialSampler(ds)", "SequentialSampler(range(15))", "SequentialSampler(range(5))",
    "RandomSampler(ds)", "RandomSampler(ds, generator=g)", "RandomSampler(ds, replacement=True)",
    "RandomSampler(ds, replacement=True, num_samples=70, generator=g)",
    "RandomSampler(ds, num_samples=5)", "RandomSampler(ds, num_samples=30, generator=g)",
    "RandomSampler(ds, num_samples=24)", "RandomSampler(range(40), num_samples=9)",
    "SubsetRandomSampler([1, 4, 2, 0], generator=g)", "Drawn(6)", "NoOrder()",
    "WeightedRandomSampler([1, 2, 3, 4, 5], 8, generator=g)", "[0, 3, 1]", "range(4, -1, -1)",
    "DistributedSampler(ds, num_replicas=2, rank=1, seed=3)", "torch.arange(5)",
    "Batches([0, 1, 2, 3], 3)", "[np.int64(1), 0, True]", "[0, -1, 30, 2]",
)  # fmt: skip

COLLATES = ("default_collate", "default_convert", "as_is", "first_and_all", "None")

BATCH_CHANGES = (
    "first(batch).fill_(7)", "first(batch).zero_()", "resize(first(batch), 1)",
    "first(batch).set_(torch.rand(2))", "first(batch).share_memory_()", "kept.append(batch)",
    "first(batch).requires_grad_()", "note(pickle.loads(pickle.dumps(batch)))",
    "note(copy.deepcopy(batch))", "first(batch).transpose_(0, -1)", "del batch",
    "first(batch).unsqueeze_(0)",
    "first(batch).numpy()[...] = 3", "note(first(batch)[0])", "note(fork(lambda: first(batch).sum()))",
)  # fmt: skip

LOADER_CHANGES = (
    "loader.batch_sampler.batch_size = 2", "loader.batch_sampler.batch_size = 5",
    "loader.batch_sampler.drop_last = True", "loader.collate_fn = as_is", "loader.generator = g",
    "loader.extra = 3", "note(len(loader))", "note(sorted(set(vars(loader)) - OURS))",
    "loader = copy.copy(loader)", "loader = pickle.loads(pickle.dumps(loader))",
    "loader = copy.deepcopy(loader)", "note(b'cputrain' in pickle.dumps(loader, 0))",
    "pickle.dumps(it)", "copy.copy(it)", "it = iter(loader)", "it = iter(loader)",
    "loader.sampler = None", "loader.dataset = ds", "torch.rand(3)", "torch.manual_seed(3)",
    "random.random()", "g.manual_seed(8)", "note(it._num_yielded)", "note(torch.utils.data.get_worker_info())",
    "loader.batch_sampler.sampler = SequentialSampler(ds)", "loader.sampler.data_source = range(4)",
    "loader.sampler._num_samples = 5", "loader.sampler.generator = g",
)  # fmt: skip

CONTENT_CHANGES = (
    "first(ds.tensors).mul_(2)", "first(ds.tensors)[2:5] = 1", "base.fill_(3)", "base += 1",
    "ds.indices[0] = 4", "ds.indices[:] = ds.indices[::-1]", "ds[1] = ds[0]", "ds.append(ds[0])",
    "ds.reverse()", "first(ds.tensors).requires_grad_()", "resize(first(ds.tensors), 20, 3)",
    "first(ds.tensors).t_()", "first(ds.tensors).set_(torch.rand(9, 2))", "ds.setflags(write=False)",
    "first(ds.tensors).data = torch.rand(9, 2)", "ds.shape = (-1, 1, 3)", "resize(ds, 5, 2)",
    "ds.indices.pop()", "ds.indices.append(40)", "ds.fill_(1)", "ds[...] = 2", "ds.dtype = np.int64",
    "ds.dataset.indices[1] = 0", "first(ds.dataset.tensors).zero_()", "ds.requires_grad_()",
    "ds.datasets[0].tensors[0].fill_(9)", "first(ds.tensors).data = torch.rand(12, 2).double()",
)  # fmt: skip

STRUCTURE_CHANGES = (
    "ds.tensors = (torch.rand(12, 2), torch.arange(12))", "ds.tensors = [torch.rand(12, 3)]",
    "ds.tensors = tuple(reversed(ds.tensors))", "ds.tensors = (torch.rand(3, 2),)",
    "ds.tensors = tuple(t.double() for t in ds.tensors)", "ds.indices = list(range(7))",
    "ds.indices = torch.arange(6)", "ds.dataset = TensorDataset(torch.rand(12, 2))",
    "ds.dataset = list(torch.rand(12, 2))", "ds.datasets[0] = TensorDataset(torch.rand(5, 2))",
    "ds.datasets[0] = list(torch.rand(12, 2))", "ds.cumulative_sizes = [2, 30]", "ds.extra = 3",
    "ds.__class__ = Doubled", "ds.__getitems__ = lambda rows: [0 for _ in rows]",
    "ds.tensors = ()", "ds.tensors = None", "del ds.tensors", "ds.datasets.reverse()",
    "ds.tensors = (torch.rand(12, 2, requires_grad=True),)", "ds.dataset.indices = [0] * 12",
    "ds.tensors = (torch.rand(12, 2).as_subclass(Kept),)", "ds.tensors = (np.ones((12, 2)),)",
)  # fmt: skip


NOT_WITH_WORKERS = ("numpy()", "share_memory_", "pickle.dumps(it)", "copy.copy(it)")
"""What tells batches of workers from torch's, as the manual says."""


def generate(seed: str, workers: int = 0) -> Lines:
    """Return a case."""
    r = random.Random(seed)
    lines = ["base = torch.rand(12, 3)", "g = torch.Generator().manual_seed(5)"]
    lines.append(f"ds = {_dataset(r)}")
    options = _options(r, workers)
    lines += [f"loader = LOADER({', '.join(['ds', *options])})", "it = iter(loader)"]
    changes = [BATCH_CHANGES, LOADER_CHANGES, STRUCTURE_CHANGES]
    if not workers:
        changes += [CONTENT_CHANGES, CONTENT_CHANGES]
    chance = r.choice((0, 0.2, 0.5))
    for _ in range(r.choice((3, 6, 9, 14))):
        if r.random() < chance:
            line = r.choice(r.choice(changes))
            if not (workers and any(word in line for word in NOT_WITH_WORKERS)):
                lines.append(line)
        lines.append("batch = next(it)")
    if r.random() < 0.3:
        lines.append("it = iter(loader)")
        lines += ["batch = next(it)"] * 2
    return lines


def _table(r: random.Random, n: int) -> str:
    count = r.choice((1, 1, 2, 2, 3))
    columns = [r.choice(("base[:{n}]", r.choice(COLUMNS))) for _ in range(count)]
    kind = r.choice(("TensorDataset",) * 8 + ("Plain", "Doubled", "Together", "Shorter", "Computed", "Asked"))  # fmt: skip
    return f"{kind}({', '.join(columns)})".replace("{n}", str(n))


def _dataset(r: random.Random, depth: int = 0, n: int = N) -> str:
    kind = r.choice(
        ("table",) * 5
        + (
            "tensor",
            "array",
            "list",
            "subset",
            "subset",
            "concat",
            "concat",
            "stack",
            "split",
            "rows",
            "stream",
        )
    )
    if (depth and kind in ("stream", "rows")) or depth > 2:
        kind = "table"
    if kind == "tensor":
        return r.choice(("base", r.choice(COLUMNS))).replace("{n}", str(n))
    if kind == "array":
        return r.choice(ARRAYS).replace("{n}", str(n))
    if kind == "list":
        return r.choice(LISTS).replace("{n}", str(n))
    if kind == "subset":
        indices = r.choice(INDICES).replace("{n}", str(n))
        if indices == "collections_deque":
            indices = "__import__('collections').deque([1, 2, 3])"
        return f"{r.choice(('Subset', 'Subset', 'Named'))}({_dataset(r, depth + 1, n)}, {indices})"
    if kind == "concat":
        if r.random() < 0.7:
            part = _table(r, n)
            parts = [part.replace(str(n), str(size)) for size in r.choices((3, 5, 12), k=r.randint(1, 11))]  # fmt: skip
        else:
            parts = [_dataset(r, depth + 1, r.choice((4, n))) for _ in range(r.randint(1, 3))]
        return f"ConcatDataset([{', '.join(parts)}])"
    if kind == "stack":
        return f"StackDataset(a={_table(r, n)}, b=torch.arange({n}))"
    if kind == "split":
        return f"random_split({_dataset(r, depth + 1, n)}, [0.6, 0.4], g)[0]"
    if kind == "rows":
        make = r.choice(("torch.rand(row + 1)[:2]", "(row, str(row))", "dict(a=np.ones(2), b=row)", "torch.rand(2, 2).t()"))  # fmt: skip
        return f"Rows({n}, lambda row: {make})"
    if kind == "stream":
        return f"{r.choice(('Stream', 'LongStream'))}({n})"
    return _table(r, n)


def _options(r: random.Random, workers: int) -> Lines:
    options: Lines = []
    kind = r.choice(("none", "none", "shuffle", "sampler", "sampler", "batches"))
    if kind == "batches":
        options.append(f"batch_sampler={r.choice(BATCH_SAMPLERS)}")
    else:
        size = r.choice(("1", "2", "3", "3", "5", "30", "None"))
        options.append(f"batch_size={size}")
        if kind == "shuffle":
            options.append("shuffle=True")
        if kind == "sampler":
            options.append(f"sampler={r.choice(SAMPLERS)}")
        if r.random() < 0.3 and size != "None":
            options.append("drop_last=True")
    if r.random() < 0.2:
        options.append("generator=g")
    if r.random() < 0.25:
        options.append(f"collate_fn={r.choice(COLLATES)}")
    if workers:
        options.append(f"num_workers={workers}")
        if r.random() < 0.4:
            options.append("persistent_workers=True")
        if r.random() < 0.3:
            options.append(f"prefetch_factor={r.choice((1, 3))}")
    return options


class _Notes:
    """What a run of a case shows."""

    def __init__(self, has_workers: bool) -> None:
        self.notes: list[str] = []
        self.has_workers = has_workers
        self._storages: list[tuple[torch.UntypedStorage, str]] = []

    def name_memory(self, thing: Any, name: str) -> None:
        """Tell the memory of tensors that are there already apart from the batches'."""
        for number, tensor in enumerate(_tensors(thing)):
            with contextlib.suppress(Exception):
                self._name_storage(tensor.untyped_storage(), f"{name}{number}")

    def _name_storage(self, storage: torch.UntypedStorage, name: str) -> str:
        # all of them are kept, so that no memory is used twice
        for known, its_name in self._storages:
            if known.data_ptr() == storage.data_ptr():
                return its_name
        self._storages.append((storage, name))
        return name

    def describe(self, thing: Any) -> str:
        if isinstance(thing, torch.Tensor):
            return self._describe_tensor(thing)
        if isinstance(thing, dict):
            inner = ", ".join(f"{key!r}: {self.describe(value)}" for key, value in thing.items())
            return f"{type(thing).__name__}({inner})"
        if isinstance(thing, list | tuple):
            return f"{type(thing).__name__}({', '.join(map(self.describe, thing))})"
        if isinstance(thing, np.ndarray):
            return f"array({thing.dtype}, {thing.shape}, {thing.strides}, {thing.tolist()})"
        return f"{type(thing).__name__} {thing!r}"

    def _describe_tensor(self, tensor: torch.Tensor) -> str:
        facts = [
            type(tensor).__name__, tensor.dtype, tuple(tensor.shape), tensor.requires_grad,
            tensor.is_leaf, type(tensor.grad_fn).__name__, tensor.is_inference(), tensor.is_conj(),
            tensor._base is None, tensor.is_neg(), tensor.layout,
        ]  # fmt: skip
        if tensor.layout is torch.strided:
            facts += [tensor.stride(), tensor.is_pinned()]
            storage = tensor.untyped_storage()
            if storage.nbytes():
                place = self._name_storage(storage, f"m{len(self._storages)}")
                if not self.has_workers:
                    facts += [tensor.is_shared(), tensor.storage_offset(), tensor._version]
                    facts += [place, storage.nbytes()]
                facts.append(_values(tensor))
        return f"tensor{tuple(map(str, facts))}"


def _values(tensor: torch.Tensor) -> str:
    try:
        return str(tensor.detach().resolve_conj().resolve_neg().to(torch.complex64).tolist())
    except RuntimeError as error:
        return f"unreadable: {type(error).__name__}"


def _tensors(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, np.ndarray):
        if thing.flags.writeable:
            with contextlib.suppress(TypeError, ValueError):
                yield torch.from_numpy(thing)
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from _tensors(part)
    elif isinstance(thing, torch.utils.data.Dataset):
        yield from _tensors(list(vars(thing).values()))


def _first(thing: Any) -> Any:
    if isinstance(thing, dict):
        thing = list(thing.values())
    return _first(thing[0]) if isinstance(thing, list | tuple) else thing


def _resize(tensor: torch.Tensor, *shape: int) -> None:
    """Resize a tensor to memory whose contents are the same in every run."""
    held = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if math.prod(shape) <= held:
        tensor.resize_(shape)
    elif not tensor.is_shared():  # growing shared memory ends plain torch by a signal
        tensor.resize_(shape).fill_(9)


def _fork(function: Any) -> str:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.write(write, str(function()).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1000)
    os.close(read)
    os.waitpid(child, 0)
    return said.decode()


def run(lines: Lines, loader: Any) -> list[tuple[str, str]]:
    """Return each line and all that could be told after it."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # what torch says once would be said in the first run alone
    try:
        return _run(lines, loader)
    finally:
        torch.set_warn_always(before)


def _run(lines: Lines, loader: Any) -> list[tuple[str, str]]:
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    notes = _Notes(any("num_workers" in line for line in lines))
    said: list[str] = []
    names: dict[str, Any] = {
        "LOADER": loader, "kept": [], "first": _first, "fork": _fork, "resize": _resize,
        "note": lambda thing: said.append(notes.describe(thing)),
        "OURS": {
            "_epoch_start", "_iterator_ref", "_resume_position", "_epoch_position", "_sharing",
            "_cache",
        },
    }  # fmt: skip
    exec(HEADER, names)
    result = []
    for line in lines:
        names.pop("batch", None) if line.startswith("batch") else None
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                exec(compile(line, "<case>", "exec"), names)
            except Exception as error:
                said.append(_error(error, notes.has_workers))
        # what a worker warns of goes to its stderr
        if not (notes.has_workers and line.startswith("batch =")):
            said += [str(w.message) for w in warned if "multi-threaded" not in str(w.message)]
        if line.startswith("ds ="):
            notes.name_memory(names.get("ds"), "d")
            notes.name_memory(names.get("base"), "b")
        if line.startswith("batch") and "batch" in names:
            said.append(notes.describe(names["batch"]))
        states = (
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state(),
            names.get("g") and names["g"].get_state(),
        )
        told = pickle.dumps([_state(state) for state in states])
        said.append(f"random {hashlib.sha1(told).hexdigest()[:8]}")
        result.append((line, "\n    ".join(said)))
        said.clear()
    names.clear()
    gc.collect()
    return result


def _state(state: Any) -> Any:
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else state


_ADDRESS = re.compile(r"0x[0-9a-f]+|pid(?:\(s\))? [\d, ]+")


def _error(error: BaseException, has_workers: bool) -> str:
    frames = [
        f"{frame.filename.rpartition('/')[2]}:{_line_number(frame, has_workers)} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)[1:]
        # cputrain.DataLoader, which the script itself has asked for, and what it stands for
        if not (frame.filename == LOADER_FILE and frame.name in ("__init__", "__iter__"))
        and frame.name != "_get_iterator"
        # rows are drawn without torch's samplers where their order is known
        and not frame.filename.endswith("utils/data/sampler.py")
        # torch's own __init__ of an iterator is not run where no worker is started
        and not (frame.name == "__init__" and frame.filename.endswith("data/dataloader.py"))
        and not frame.filename.endswith("cputrain/data/workers.py")
        # what a Split has put in the place of torch's, which we hide among our frames
        and "cputrain/split/" not in frame.filename
    ]
    return _ADDRESS.sub("…", f"{type(error).__name__}: {error}\n    {' '.join(frames)}")


def _line_number(frame: traceback.FrameSummary, has_workers: bool) -> int | str:
    """Return a frame's line, or "-" where torch's depends on which worker is first."""
    return "-" if has_workers and frame.name == "_next_data" else frame.lineno or 0


def compare(lines: Lines) -> list[str]:
    """Return the first difference between torch and us; nothing if there is none."""
    plain = run(lines, torch.utils.data.DataLoader)
    for name in ("launch", "DataLoader"):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            if name == "launch":
                patched = Loaders(torch)
                try:
                    ours = run(lines, torch.utils.data.DataLoader)
                finally:
                    patched.undo()
            else:  # the script itself has asked for this class
                lines = [line for line in lines if "cputrain" not in line]
                ours = run(lines, cputrain.data.DataLoader)
                plain = [result for result in plain if "cputrain" not in result[0]]
        for (line, theirs), (_, our) in zip(plain, ours, strict=True):
            if theirs != our:
                return [f"{name}: {line}", f"  torch: {theirs}", f"  ours:  {our}"]
        if "[internal]" in errors.getvalue():
            return [name, errors.getvalue()]
    return []


def is_in_memory(lines: Lines) -> bool:
    """Return whether no worker is started for the case's loader."""
    names: dict[str, Any] = {"LOADER": torch.utils.data.DataLoader}
    exec(HEADER, names)
    for line in lines:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(line, names)
        if "loader" in names:
            return columns_of_loader(names["loader"]) is not None
    return False


def reduce(lines: Lines) -> Lines:
    """Return the fewest lines that still differ."""
    place = len(lines) - 1
    while place >= 0:
        fewer = lines[:place] + lines[place + 1 :]
        if "LOADER" in "".join(fewer) and compare(fewer):
            lines = fewer
        place -= 1
    return lines


__all__ = ["case_datasets", "compare", "generate", "is_in_memory", "reduce", "run"]
