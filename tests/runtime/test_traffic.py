"""Bytes that operators must move: never more than there are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cputrain.runtime.operators import OperatorTrace
from cputrain.runtime.traffic import traffic_of
from tests.runtime.test_flops import traced, traced_steps

N = 1000
X, Y = torch.ones(N), torch.ones(N)
TABLE = torch.ones(500, 8)
ROWS = torch.tensor([3, 5, 499])


def moved(run):
    """The bytes of all operators."""
    return sum(one["bytes"] * one["calls"] for one in traced(run))


@pytest.mark.parametrize(
    ("run", "numbers"),
    [
        (lambda: torch.add(X, Y), 3 * N),
        (lambda: torch.add(X, X), 2 * N),  # it is read once
        (lambda: X.add_(Y), 3 * N),
        (lambda: X.neg_(), 2 * N),
        (lambda: X.zero_(), N),
        (lambda: X.fill_(1.0), N),
        (lambda: X.copy_(Y), 2 * N),
        (lambda: torch.add(X, Y, out=X), 3 * N),
        (lambda: torch.mul(X, 2, out=Y), 2 * N),
        (lambda: X.sum(), N + 1),
        (lambda: torch.zeros_like(X), N),
        (lambda: torch.empty_like(X), 0),
        (lambda: torch.empty(N), 0),
        (lambda: X.view(10, 100), 0),
        (lambda: X.view(10, 100).t_(), 0),
        (lambda: X.detach().unsqueeze(0).expand(50, N), 0),
        (lambda: X.view(1, N).expand(50, N) + torch.ones(50, 1), N + 2 * 50 + 50 * N),
        (lambda: torch.as_strided(X, (N, 100), (1, 0)).sum(), N + 1),
        (lambda: X.unfold(0, 500, 1).sum(), N + 1),  # windows of one storage
        (lambda: torch.cat([X, Y]), 4 * N),
        (lambda: torch._foreach_add_([X, Y], 1.0), 4 * N),
    ],
)
def test_numbers_that_are_moved(run, numbers):
    assert moved(run) == 4 * numbers


@pytest.mark.parametrize(
    ("run", "numbers"),
    [
        (lambda: (X + Y).mul(X), 4 * N),
        (lambda: (X + Y).relu_().neg_().sum(), 3 * N + 1),
        (lambda: [X.sum() for _ in range(3)], N + 3),
        (lambda: [X[:600].sum(), X.sum(), X[300:].sum()], N + 3),
        (lambda: X.view(10, 100).t().contiguous().add_(1), 2 * N),
        # each has the memory of the one before
        (lambda: [float(torch.full((N,), 2.0).sum()) for _ in range(3)], 3 * N + 3),
        (lambda: [float(torch.empty(N).fill_(2.0).sum()) for _ in range(3)], 3 * N + 3),
    ],
)
def test_each_tensor_of_a_step_is_moved_once(run, numbers):
    assert traced_steps([run])["tensor_bytes"] == 4 * numbers
    assert traced_steps([run, run])["tensor_bytes"] == 2 * 4 * numbers


def test_fused_updates_move_less_than_plain_ones():
    def step(fused):
        parameter = torch.nn.Parameter(torch.ones(N))
        parameter.grad = torch.ones(N)
        optimizer = torch.optim.Adam([parameter], fused=fused)
        optimizer.step()
        return traced_steps([optimizer.step])["tensor_bytes"]

    assert 4 * 4 * N <= step(True) < 4 * 4 * N + 100  # parameter, gradient and two averages
    assert step(False) > 4 * 6 * N


def test_a_lookup_reads_its_rows_and_not_the_table():
    rows = len(ROWS) * 8
    for run in (
        lambda: torch.nn.functional.embedding(ROWS, TABLE),
        lambda: TABLE.index_select(0, ROWS),
        lambda: TABLE[ROWS],
    ):
        assert moved(run) == 4 * 2 * rows + 8 * len(ROWS)
    bag = moved(lambda: torch.nn.functional.embedding_bag(ROWS.view(1, 3), TABLE, mode="sum"))
    assert bag < 4 * TABLE.numel() / 4
    into = moved(lambda: TABLE.index_add_(0, ROWS, torch.ones(3, 8)))
    assert into == 4 * (3 * rows + rows) + 8 * len(ROWS)  # and the ones, which are made


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
def test_tensors_without_elements_of_their_own_end_no_script():
    def sparse():
        table = torch.nn.Embedding(100, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        table(ROWS % 100).sum().backward()
        optimizer.step()
        torch.eye(8).to_sparse_csr() @ torch.ones(8, 8)

    def nested():
        for layout in (torch.jagged, torch.strided):
            both = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=layout)
            (both * 2).to_padded_tensor(0.0)

    def of_others():
        torch.ones(4, 4, device="meta") + 1
        torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8).dequantize()

    for run in (sparse, nested, of_others):
        assert all(one["bytes"] >= 0 for one in traced(run))


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_functions_that_must_be_compiled_whole_run_operator_by_operator():
    model = torch.compile(torch.nn.Linear(4, 4), fullgraph=True)
    assert "addmm" in {one["name"] for one in traced(lambda: model(torch.ones(2, 4)))}


@pytest.mark.parametrize(("precision", "type_"), [("bf16", "bfloat16"), ("ieee", "")])
def test_the_type_that_float32_is_computed_in(precision, type_):
    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    backend.fp32_precision = precision
    try:
        (product,) = traced(lambda: torch.mm(X.view(10, 100), Y.view(100, 10)))[-1:]
    finally:
        backend.fp32_precision = before
    assert product["computed_in"] == type_


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=6))
def test_calls_with_the_same_shapes_that_do_other_work_are_apart(cases):
    """A convolution's padding and dilation are not in the shapes of what it is given."""
    images, weight = torch.ones(1, 1, 40), torch.ones(1, 1, 3)
    trace = OperatorTrace(torch)
    trace.begin()
    for dilation, padding in cases:
        torch.conv1d(images, weight, dilation=dilation, padding=padding)
    trace.stop()
    counted = sum(
        one["flops"] * one["calls"] for one in trace.document()["operators"]
        if one["name"] == "convolution"
    )  # fmt: skip
    alone = sum(
        2 * torch.conv1d(images, weight, dilation=dilation, padding=padding).sum().item()
        for dilation, padding in cases
    )
    assert counted == alone


def test_a_part_of_a_storage_is_no_more_than_it():
    func = torch.ops.aten.cat.default
    parts = [X[:600], X[300:900], X[:1000]]
    traffic = traffic_of(torch, func, (parts,), {}, torch.cat(parts))
    assert traffic.num_bytes == 4 * (N + 2200)
