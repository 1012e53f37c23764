"""A tensor is filled by many processes: every row once, the same for the same seed, and goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cputrain import fill
from cputrain.errors import FillFailed, TaskTimeout, UsageError, WorkerDied
from tests.pool.functions import METHODS, until
from tests.pool.scripts import ended

pytestmark = pytest.mark.usefixtures("nothing_left")

quietly = partial(fill, processes=2, progress=False)


# what workers call


def noise(rows: range, view: torch.Tensor, seed: int) -> None:
    view.copy_(torch.rand(view.shape))


def numbered(rows: range, view: Any, seed: int) -> None:
    """Each row holds its number."""
    view[:] = torch.arange(rows.start, rows.stop).view(-1, *[1] * (view.ndim - 1))


def number_and_size(rows: range, view: torch.Tensor, seed: int) -> None:
    view[:, 0], view[:, 1], view[:, 2] = rows.start, len(rows), seed >> 1


def drawn_everywhere(rows: range, view: torch.Tensor, seed: int) -> None:
    """A part's first numbers of each generator, and its seed."""
    view[:, 0] = torch.rand((), dtype=torch.float64)
    view[:, 1] = random.random()
    view[:, 2] = float(np.random.rand())
    view[:, 3] = float(seed)


def counted(counts: torch.Tensor, rows: range, view: torch.Tensor, seed: int) -> None:
    assert len(view) == len(rows)
    counts[rows.start : rows.stop] += 1
    view.zero_()


def too_few(rows: range, view: torch.Tensor) -> None:
    pass


def too_many(rows: range, view: torch.Tensor, other: torch.Tensor, seed: int) -> None:
    pass


def who(rows: range, view: torch.Tensor, seed: int) -> None:
    view.fill_(os.getpid())


def who_of_three(folder: Path, rows: range, view: torch.Tensor, seed: int) -> None:
    """Write the process's number once two others are at work, too."""
    (folder / str(os.getpid())).touch()
    until(lambda: len(list(folder.iterdir())) >= 3)
    view.fill_(os.getpid())


def both(rows: range, one: torch.Tensor, other: torch.Tensor, seed: int) -> None:
    numbered(rows, one, seed)
    other.copy_(torch.rand(other.shape))


def returning(rows: range, view: torch.Tensor, seed: int) -> Callable[[], None]:
    """What it returns could not even be sent."""
    numbered(rows, view, seed)
    return lambda: None


def in_autograd(rows: range, view: torch.Tensor, seed: int) -> None:
    assert not torch.is_grad_enabled()
    assert not view.requires_grad
    numbered(rows, view, seed)


def raising_at(row: int, rows: range, view: torch.Tensor, seed: int) -> None:
    view.copy_(torch.rand(view.shape))
    if row in rows:
        raise LookupError(f"nothing for row {row}")


def raising_where_it_stands(path: str, rows: range, view: torch.Tensor, seed: int) -> None:
    if os.path.exists(path):
        view.fill_(-1)
        raise LookupError
    noise(rows, view, seed)


def killed_at(row: int, mark: str, rows: range, view: torch.Tensor, seed: int) -> None:
    """Its process is killed in the middle; the second time it is not, if there is a mark."""
    view[: len(view) // 2].fill_(-1)
    if row in rows and not (mark and os.path.exists(mark)):
        if mark:
            Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    noise(rows, view, seed)


def slow_at(row: int, rows: range, view: torch.Tensor, seed: int) -> None:
    noise(rows, view, seed)
    if row in rows:
        time.sleep(60)


def whether_shared(rows: range, view: torch.Tensor, seed: int) -> None:
    view.fill_(1 + view.is_shared())


def made(rows: int, **options: Any) -> torch.Tensor:
    """What an undisturbed call makes."""
    out: torch.Tensor = quietly(torch.empty(rows, 3), noise, **options)
    return out


def expected(rows: int) -> torch.Tensor:
    return torch.arange(rows).view(-1, 1).expand(-1, 3)


# the same seed


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_data_for_any_number_of_processes(method: str) -> None:
    reference = made(3000, seed=5, context="fork")
    for processes in (1, 2, 3) if method == "fork" else (2,):
        assert torch.equal(made(3000, seed=5, processes=processes, context=method), reference)
    assert not torch.equal(made(3000, seed=6), reference)
    assert len(reference.unique()) > 0.99 * reference.numel()


def test_the_size_of_a_part_never_depends_on_the_number_of_processes() -> None:
    found = [
        quietly(torch.empty(5000, 3, dtype=torch.int64), number_and_size, seed=1, processes=one)
        for one in (1, 2, 3)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert found[0][:, 1].max() == 5


def test_a_part_has_no_more_than_32_mebibytes_if_a_row_has_no_more() -> None:
    rows = quietly(
        torch.empty(10, 9 << 20, dtype=torch.uint8)[:, :3],  # 3 bytes of a row are filled
        numbered,
    )
    assert rows.tolist() == expected(10).tolist()
    out = quietly(torch.empty(9000, 32768, dtype=torch.uint8), returning_sizes)
    assert int(out[:, 0].max()) == 9


def returning_sizes(rows: range, view: torch.Tensor, seed: int) -> None:
    view[:, 0] = len(rows)


def test_another_size_of_parts_may_give_other_data() -> None:
    assert torch.equal(made(100, seed=5, chunk=10), made(100, seed=5, chunk=10))
    assert not torch.equal(made(100, seed=5, chunk=10), made(100, seed=5, chunk=20))


def test_the_beginning_does_not_depend_on_what_follows() -> None:
    assert torch.equal(made(100, seed=5, chunk=10), made(200, seed=5, chunk=10)[:100])


def test_every_generator_is_seeded_for_each_part_and_no_two_parts_draw_the_same() -> None:
    drawn = [
        quietly(torch.empty(60, 4, dtype=torch.float64), drawn_everywhere, chunk=2, seed=7)
        for _ in range(2)
    ]
    assert torch.equal(*drawn)
    assert [len(drawn[0][:, column].unique()) for column in range(4)] == [30] * 4


def test_the_generators_of_the_script_are_left_alone_if_a_seed_is_given() -> None:
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    made(50, seed=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]


def test_without_a_seed_one_is_drawn_from_torchs() -> None:
    before = random.getstate(), str(np.random.get_state())
    torch.manual_seed(11)
    first, second = made(50), made(50)
    torch.manual_seed(11)
    assert torch.equal(made(50), first)
    assert torch.equal(made(50), second)
    assert not torch.equal(first, second)
    assert (random.getstate(), str(np.random.get_state())) == before


# what fn is given

FORMS: dict[str, Any] = {}


def form(fn: Any) -> Any:
    FORMS[fn.__name__] = fn
    return fn


@form
def positional(index, one, two, s):  # type: ignore[no-untyped-def]
    both(index, one, two, s)


@form
def by_name(index, one, two, seed):  # type: ignore[no-untyped-def]
    both(index, one, two, seed)


@form
def keyword_only(index, *views, seed):  # type: ignore[no-untyped-def]
    both(index, *views, seed)


@form
def any_keywords(index, *views, **words):  # type: ignore[no-untyped-def]
    assert list(words) == ["seed"]
    both(index, *views, words["seed"])


@form
def anything(*everything):  # type: ignore[no-untyped-def]
    both(*everything)


@form
def with_a_default(index, one, two, seed=None, more=3):  # type: ignore[no-untyped-def]
    assert seed is not None
    both(index, one, two, seed)


class Callee:
    def __call__(self, index: range, one: Any, two: Any, seed: int) -> None:
        both(index, one, two, seed)


FORMS |= {"an object": Callee(), "a method": Callee().__call__, "a partial": partial(both)}


@pytest.mark.parametrize("name", FORMS)
def test_a_function_may_take_its_seed_as_it_likes(name: str) -> None:
    found = quietly((torch.empty(20, 3), torch.empty(20)), FORMS[name], chunk=7, seed=2)
    known = quietly((torch.empty(20, 3), torch.empty(20)), both, chunk=7, seed=2)
    assert torch.equal(found[0], expected(20))
    assert torch.equal(found[1], known[1])


def test_what_a_function_returns_is_of_no_interest() -> None:
    assert torch.equal(quietly(torch.empty(10, 3), returning), expected(10))


def test_a_function_runs_without_autograd() -> None:
    assert torch.equal(quietly(torch.empty(10, 3, requires_grad=True), in_autograd), expected(10))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(rows=st.integers(0, 300), chunk=st.one_of(st.just("auto"), st.integers(1, 400)))
def test_every_row_is_made_once(rows: int, chunk: Any) -> None:
    counts = torch.zeros(max(rows, 1), dtype=torch.int32).share_memory_()
    out = torch.full((rows, 2), 9.0)
    assert quietly(out, partial(counted, counts), chunk=chunk) is out
    assert bool((counts[:rows] == 1).all())
    assert not out.any()


# what is filled

KINDS = [
    "uint8",
    "int16",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "bool",
]


@pytest.mark.parametrize("shape", [(), (3,), (3000, 2)], ids=str)
def test_a_tensor_of_any_kind_is_filled(shape: tuple[int, ...]) -> None:
    for kind in KINDS:
        dtype = getattr(torch, kind)
        out = torch.empty(9, *shape, dtype=dtype)
        assert quietly(out, numbered, chunk=4) is out
        row = torch.arange(9).to(dtype).view(-1, *[1] * len(shape))
        assert torch.equal(out, row.expand(9, *shape)), kind


def test_several_tensors_are_filled_at_once() -> None:
    tensors = [torch.empty(50, 3), torch.empty(50, dtype=torch.bfloat16)]
    found = quietly(tensors, both)
    assert found is tensors
    assert torch.equal(tensors[0], expected(50))
    assert len(tensors[1].unique()) > 20


def test_arrays_are_filled_in_their_place() -> None:
    array, tensor = np.empty((50, 3), np.uint8), torch.empty(50)
    found = quietly((array, tensor), both)
    assert found[0] is array
    assert (array == expected(50).numpy()).all()
    turned = np.empty((3, 50), np.float32).T
    assert (quietly(turned, numbered) == expected(50).numpy()).all()


def test_a_view_is_filled_and_nothing_beside_it() -> None:
    whole = torch.full((40, 10), -7)
    part = whole[5:35:2, 2:9:3]
    assert quietly(part, numbered, chunk=4) is part
    assert torch.equal(part, expected(15))
    part.fill_(-7)
    assert bool((whole == -7).all())
    shared = torch.full((40, 10), -7).share_memory_()
    part = shared[5:35:2, 2:9:3]
    quietly(part, numbered, chunk=4)
    assert torch.equal(part, expected(15))
    part.fill_(-7)
    assert bool((shared == -7).all())
    turned = torch.empty(3, 50).T
    assert torch.equal(quietly(turned, numbered), expected(50))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_shared_tensor_is_written_where_it_lies(method: str) -> None:
    shared = torch.zeros(300, 3000, dtype=torch.uint8).share_memory_()
    place = shared.data_ptr()
    assert quietly(shared, whether_shared, context=method) is shared
    assert shared.data_ptr() == place
    assert bool((shared == 2).all())
    assert bool((quietly(torch.zeros(300, 3000), whether_shared, context=method) == 1).all())


def test_a_shared_tensor_that_is_seen_conjugated_is_filled() -> None:
    shared = torch.zeros(300, 3, dtype=torch.complex64).share_memory_().conj()
    assert torch.equal(quietly(shared, numbered), expected(300).to(torch.complex64))


def test_a_tensor_that_is_shared_by_a_name_is_filled(tmp_path: Path) -> None:
    text = """
from cputrain import fill
def numbered(rows, view, seed):
    view[:] = torch.arange(rows.start, rows.stop)
if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy("file_system")
    out = fill(torch.zeros(300).share_memory_(), numbered, processes=2, progress=False)
    print(torch.equal(out, torch.arange(300.0)))
"""
    code, out, err = ended(tmp_path, text)
    assert (code, out) == (0, "True\n"), err


def test_a_mix_of_shared_and_own_tensors_is_filled() -> None:
    pair = torch.empty(50, 3).share_memory_(), torch.empty(50)
    quietly(pair, both, seed=1)
    other = torch.empty(50, 3), torch.empty(50).share_memory_()
    quietly(other, both, seed=1)
    assert torch.equal(pair[0], other[0])
    assert torch.equal(pair[1], other[1])


def test_weights_are_filled_and_stay_weights() -> None:
    layer = torch.nn.Linear(3, 20)
    for out in (layer.weight, layer.weight.data, layer.weight.detach()):
        with torch.no_grad():
            layer.weight.zero_()
        assert quietly(out, numbered) is out
        assert torch.equal(layer.weight, expected(20))
    assert layer.weight.requires_grad
    assert layer.weight.is_leaf


def test_files_in_memory_are_filled(tmp_path: Path) -> None:
    path = str(tmp_path / "tensor")
    mapped = torch.from_file(path, shared=True, size=900, dtype=torch.float32).view(300, 3)
    quietly(mapped, numbered)
    assert torch.equal(mapped, expected(300))
    assert (np.fromfile(path, np.float32).reshape(300, 3) == expected(300).numpy()).all()
    array = np.memmap(tmp_path / "array", np.int16, "w+", shape=(300, 3))
    assert quietly(array, numbered) is array
    array.flush()
    read = np.fromfile(tmp_path / "array", np.int16).reshape(300, 3)
    assert (read == expected(300).numpy()).all()


def test_no_rows_and_one_row_are_filled() -> None:
    assert quietly(torch.empty(0, 3), numbered).shape == (0, 3)
    assert quietly(torch.empty(1, 3), numbered).tolist() == [[0, 0, 0]]
    assert quietly(torch.empty(5, 0), noise).shape == (5, 0)


def test_there_are_no_more_processes_than_parts(tmp_path: Path) -> None:
    assert len(quietly(torch.empty(6), who, chunk=3, processes=8).unique()) <= 2
    three = partial(who_of_three, tmp_path)
    assert len(quietly(torch.empty(60), three, chunk=10, processes=3).unique()) == 3


# what fails


many_or_few = pytest.mark.parametrize(
    ("rows", "chunk", "row"),
    [(100, 10, 57), (6000, 2, 5001)],
    ids=["few parts", "many, in bundles"],
)


@many_or_few
def test_a_failure_names_its_rows_and_what_is_there_can_be_gone_on_with(
    rows: int, chunk: int, row: int
) -> None:
    known = made(rows, seed=4, chunk=chunk)
    out = torch.full((rows, 3), -1.0)
    failed = range(row - row % chunk, row - row % chunk + chunk)
    with pytest.raises(
        FillFailed,
        match=rf"^rows {failed.start} to {failed.stop - 1} were not filled; "
        rf"found LookupError: nothing for row {row}\.",
    ) as raised:
        quietly(out, partial(raising_at, row), seed=4, chunk=chunk)
    error = raised.value
    assert error.failed == failed
    assert isinstance(error.__cause__, LookupError)
    assert "in raising_at" in str(error.__cause__.__cause__)
    done = error.done
    assert isinstance(done, torch.Tensor)
    assert f"{int(done.sum()):,} of {rows:,} rows are there" in str(error)
    assert "resume=error.done" in str(error)
    assert not done[failed.start : failed.stop].any()
    assert torch.equal(out[done], known[done])
    assert bool((out[~done] == -1).all())
    assert quietly(out, noise, seed=4, chunk=chunk, resume=done) is out
    assert torch.equal(out, known)
    assert bool(done.all())


def test_a_mask_is_kept_up_to_date_in_its_place() -> None:
    out, mask = torch.zeros(100, 3), torch.zeros(100, dtype=torch.bool)
    with pytest.raises(FillFailed) as raised:
        quietly(out, partial(raising_at, 99), seed=4, chunk=5, processes=1, resume=mask)
    assert raised.value.done is mask
    assert mask.tolist() == [True] * 95 + [False] * 5
    quietly(out, noise, seed=4, chunk=5, resume=mask)
    assert bool(mask.all())
    assert torch.equal(out, made(100, seed=4, chunk=5))


def test_what_is_done_is_not_made_again_and_a_part_that_is_half_done_is() -> None:
    out, mask = torch.full((40, 3), 0.5), torch.zeros(40, dtype=torch.bool)
    mask[10:20] = True
    mask[30:35] = True
    quietly(out, numbered, chunk=10, resume=mask)
    assert bool((out[10:20] == 0.5).all())
    out[10:20] = expected(40)[10:20]
    assert torch.equal(out, expected(40))
    before = out.clone()
    assert quietly(out, noise, resume=mask) is out
    assert torch.equal(out, before)


def test_a_shared_tensor_of_which_a_part_failed_is_gone_on_with(tmp_path: Path) -> None:
    out, mark = torch.zeros(40, 3).share_memory_(), tmp_path / "mark"
    mark.touch()
    fn = partial(raising_where_it_stands, str(mark))
    with pytest.raises(FillFailed) as raised:
        quietly(out, fn, seed=9, chunk=4)
    assert not raised.value.done.any()  # type: ignore[attr-defined]
    mark.unlink()
    quietly(out, fn, seed=9, chunk=4, resume=raised.value.done)
    assert torch.equal(out, made(40, seed=9, chunk=4))


@many_or_few
@pytest.mark.parametrize("place", ["own", "shared"])
def test_a_worker_that_is_killed_costs_nothing_if_its_part_may_be_tried_again(
    place: str, tmp_path: Path, rows: int, chunk: int, row: int
) -> None:
    out = torch.zeros(rows, 3)
    if place == "shared":
        out.share_memory_()
    fn = partial(killed_at, row, str(tmp_path / "mark"))
    quietly(out, fn, seed=4, chunk=chunk, retries=1)
    assert torch.equal(out, made(rows, seed=4, chunk=chunk))


@many_or_few
def test_a_worker_that_is_killed_is_told_with_its_rows(rows: int, chunk: int, row: int) -> None:
    out = torch.zeros(rows, 3)
    first = row - row % chunk
    with pytest.raises(
        FillFailed, match=rf"rows {first} to {first + chunk - 1} .*killed by SIGKILL.*memory"
    ) as raised:
        quietly(out, partial(killed_at, row, ""), seed=4, chunk=chunk)
    assert isinstance(raised.value.__cause__, WorkerDied)
    done = raised.value.done
    quietly(out, noise, seed=4, chunk=chunk, resume=done)
    assert torch.equal(out, made(rows, seed=4, chunk=chunk))


def test_a_part_that_takes_too_long_is_told_with_its_rows() -> None:
    begin = time.monotonic()
    with pytest.raises(FillFailed, match=r"rows 30 to 39 .*0\.5 s") as raised:
        quietly(torch.zeros(100, 3), partial(slow_at, 33), chunk=10, timeout=0.5)
    assert isinstance(raised.value.__cause__, TaskTimeout)
    assert time.monotonic() - begin < 15


def test_a_function_that_cannot_be_sent_is_told() -> None:
    with pytest.raises(FillFailed, match=r"pickle.*lambda|lambda.*pickle") as raised:
        quietly(torch.zeros(10), lambda *_: None, context="forkserver")
    assert raised.value.failed.start == 0
    assert not raised.value.done.any()  # type: ignore[attr-defined]


def test_ctrl_c_leaves_a_mask_that_is_right_and_no_process(tmp_path: Path) -> None:
    text = """
from cputrain import fill
def rare(rows, view, seed):
    view.copy_(torch.rand(view.shape))
    if rows.start == 200 and not os.path.exists("interrupted"):
        open("interrupted", "w").close()
        time.sleep(1)  # some parts are marked by then
        os.killpg(0, signal.SIGINT)
        time.sleep(60)
def filled(out, **options):
    return fill(out, rare, chunk=4, processes=2, seed=3, progress=False, **options)
if __name__ == "__main__":
    out, mask = torch.zeros(400, 3), torch.zeros(400, dtype=torch.bool)
    begin = time.monotonic()
    try:
        filled(out, resume=mask)
    except KeyboardInterrupt as interrupt:
        print(f"{int(mask.sum())} of 400 rows are there" in interrupt.__notes__[0])
    print(time.monotonic() - begin < 10, bool(mask[:200].any()), bool(mask[200:204].any()))
    known = filled(torch.zeros(400, 3))
    # the interrupt may come when a part has been written, and not yet marked
    print(torch.equal(out[mask], known[mask]), bool(((out == known) | (out == 0)).all()))
    filled(out, resume=mask)
    print(torch.equal(out, known), bool(mask.all()))
"""
    code, out, err = ended(tmp_path, text)
    assert code == 0, err
    assert out.split() == ["True", "True", "True", "False", *["True"] * 4]
    assert err == ""


# wrong calls

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "out is a list of numbers": ({"out": [1, 2]}, "out must be a tensor with rows.*found int"),
    "out has no rows": ({"out": torch.zeros(())}, "out must be a tensor with rows.*dimensions"),
    "out is nothing": (
        {"out": ()},
        "out must be tensors of the same length; found lengths of none",
    ),
    "lengths": (
        {"out": (torch.zeros(3), torch.zeros(4))},
        "out must be tensors of the same length; found lengths 3, 4",
    ),
    "chunk 0": ({"chunk": 0}, "chunk must be a whole number, 1 or more; found 0"),
    "chunk in words": ({"chunk": "big"}, "chunk must be .*found 'big'"),
    "chunk 2.5": ({"chunk": 2.5}, r"chunk must be .*found 2\.5"),
    "processes 0": ({"processes": 0}, "processes must be a whole number, 1 or more; found 0"),
    "processes -1": ({"processes": -1}, "processes must be .*found -1"),
    "processes 2.5": ({"processes": 2.5}, r"processes must be .*found 2\.5"),
    "processes in words": ({"processes": "many"}, "processes must be .*found 'many'.*auto"),
    "seed -1": ({"seed": -1}, "seed must be a whole number, 0 or more; found -1"),
    "seed 0.5": ({"seed": 0.5}, r"seed must be .*found 0\.5"),
    "resume's kind": (
        {"resume": torch.zeros(10)},
        r"resume must be a tensor of 10 booleans.*torch.float32 and shape \(10,\)",
    ),
    "resume's shape": (
        {"resume": torch.zeros(9, dtype=torch.bool)},
        r"resume must be .*found .*shape \(9,\).*torch.zeros\(10",
    ),
    "resume is a list": ({"resume": [False] * 10}, "resume must be .*found list"),
    "fn is no function": ({"fn": 5}, "fn must be a function; found 5.*index_range, view, seed"),
    "fn takes too few": (
        {"fn": too_few},
        "fn must take .*found too_few.*too many",
    ),
    "fn takes too many": (
        {"fn": too_many},
        "fn must take .*missing a required argument: 'other'",
    ),
    "timeout 0": ({"timeout": 0}, "timeout must be .*found 0"),
    "retries -1": ({"retries": -1}, "retries must be .*found -1"),
    "context": ({"context": "frok"}, "context must be .*found 'frok'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_told_with_the_parameter_the_rule_and_what_was_found(name: str) -> None:
    wrong, says = WRONG[name]
    with pytest.raises(UsageError, match=f"^{says}") as raised:
        fill(**{"out": torch.zeros(10), "fn": numbered, "progress": False, **wrong})
    if "retries" not in wrong:
        assert raised.value.do


def test_an_array_that_can_only_be_read_is_refused() -> None:
    array = np.zeros(10)
    array.flags.writeable = False
    with pytest.raises(UsageError, match=r"^out must be writable.*read"):
        quietly(array, numbered)


# the bar


def test_a_bar_on_standard_error_says_how_fast_and_for_how_long(
    capfd: pytest.CaptureFixture[str],
) -> None:
    fill(torch.empty(200, 3), numbered, processes=1)
    said = capfd.readouterr()
    assert said.out == ""
    assert "numbered" in said.err
    assert "200/200" in said.err
    assert "/s " in said.err
    assert "0:00:0" in said.err
    fill(torch.empty(200, 3), numbered, processes=1, progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_bar_begins_with_what_is_done_already(capfd: pytest.CaptureFixture[str]) -> None:
    mask = torch.arange(200) < 150
    with pytest.raises(FillFailed):
        fill(torch.empty(200, 3), partial(raising_at, 180), chunk=50, resume=mask)
    said = capfd.readouterr()
    assert said.out == ""
    assert "raising_at" in said.err
    assert "150/200" in said.err
