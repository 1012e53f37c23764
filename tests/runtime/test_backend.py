"""Models run by another backend: where that gives what torch gives, and is faster."""

from __future__ import annotations

import copy
import time

import numpy as np
import pytest
import torch
from torch import nn

from cputrain import settings
from cputrain.backends import registry
from cputrain.runtime import backend
from cputrain.settings.backend import BackendChoice
from tests.backends import planted


@pytest.fixture
def runs(applied, monkeypatch):
    """Applies the setting with a planted backend."""

    def start(one, *, training=False, asked=True, unsafe=False):
        monkeypatch.setattr(registry, "load_backend", lambda name: {one.name: one}[name])
        value = BackendChoice(
            training=one.name if training else None,
            evaluation=None if training else one.name,
            asked=asked,
            unsafe=unsafe,
        )
        return applied(settings.backend, value)

    return start


def evaluated(model, batch, times=1):
    model.eval()
    with torch.no_grad():
        return [model(batch) for _ in range(times)][-1]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 2))


X = torch.ones(4, 8)


def test_evaluation_is_its_own_and_all_else_is_torchs(runs, model):
    counts = planted.Counts()
    told = runs(counts)
    expected = evaluated(copy.deepcopy(model), X)
    torch.testing.assert_close(evaluated(model, X, 3), expected)
    assert counts.asked[-1] == (False, None)
    assert counts.calls >= 3
    before = counts.calls
    model(X)  # with gradients
    model.train()
    with torch.no_grad():
        model(X)  # dropout is on
    evaluated(model, torch.ones(3, 8))  # of another form, which a compiler would compile for
    with torch.inference_mode():
        nn.ReLU().eval()(X)  # nothing that was learned
    assert counts.calls == before
    assert "a model evaluated by counts, 0e+00 from torch's" in told.describe()


def test_a_model_is_trained_by_it_after_a_whole_step(runs, model):
    counts = planted.Counts()
    told = runs(counts, training=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()
    assert counts.asked == [(True, optimizer)]
    assert counts.calls == 2
    assert told.describe() == "a model trained by counts"


def test_who_changes_the_model_itself_does_so_before_its_first_call(runs, model):
    counts = planted.Counts()
    counts.in_place = True
    runs(counts, training=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(X).sum().backward()
        optimizer.step()
    assert counts.asked == [(True, optimizer)]
    assert counts.calls == 3
    late = nn.Linear(8, 2)  # it has no optimizer in its first call, and is let alone for good
    for _ in range(2):
        late(X).sum().backward()
        torch.optim.SGD(late.parameters(), lr=0.1).step()
    assert len(counts.asked) == 1


def test_a_model_of_two_optimizers_is_torchs(runs, model):
    counts = planted.Counts()
    told = runs(counts, training=True)
    optimizers = [torch.optim.SGD(model[place].parameters(), lr=0.1) for place in (0, 2)]
    for _ in range(3):
        model(X).sum().backward()
        for one in optimizers:
            one.step()
    assert counts.calls == 0
    assert told.describe() == "a model is trained by torch: it has 2 optimizers"


def test_gradients_that_are_differentiated_again_are_torchs(runs, model):
    counts = planted.Counts()
    runs(counts, training=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        torch.autograd.grad(model(X).sum(), list(model.parameters()), create_graph=True)
        optimizer.step()
    assert counts.calls == 0


def test_an_output_that_is_another_is_never_seen(runs, model):
    told = runs(planted.Wrong())
    expected = evaluated(copy.deepcopy(model), X)
    for _ in range(3):
        assert torch.equal(evaluated(model, X), expected)
    assert "and not by wrong: its output was 1.0e-02 off" in told.describe()


def test_it_is_if_the_user_wants_it(runs, model):
    told = runs(planted.Wrong(), unsafe=True)
    expected = evaluated(copy.deepcopy(model), X)
    torch.testing.assert_close(evaluated(model, X, 2), expected * 1.01)
    assert "a model evaluated by wrong, 1e-02 from torch's" in told.describe()


def test_what_fails_is_done_by_torch(runs, model):
    told = runs(planted.FailsLater())
    expected = evaluated(copy.deepcopy(model), X)
    for _ in range(3):
        assert torch.equal(evaluated(model, X), expected)
    assert "and not by fails-later: RuntimeError: no kernel for this" in told.describe()
    fails = planted.FailsInTraining()
    told = runs(fails, training=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.train()(X).sum().backward()
        optimizer.step()
    assert told.describe() == "a model is trained by torch: RuntimeError: no kernel for this"


def test_a_model_that_writes_to_itself_is_torchs(runs):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.layer(x)

    told = runs(planted.Counts())
    model = Writes()
    evaluated(model, X, 3)
    assert model.calls == 3
    assert "a second call would be seen" in told.describe()


@pytest.mark.parametrize("kind", ["attribute", "argument", "list", "hook"])
def test_a_call_that_would_be_seen_is_not_made_twice(runs, kind):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 2)
            self.calls = 0

        def forward(self, x, cache, kept):
            if kind == "attribute":
                self.calls += 1
            if kind == "argument":
                cache += 1
            if kind == "list":
                kept.append(x)
            return self.layer(x)

    told = runs(planted.Counts())
    model, cache, kept, heard = Counts().eval(), torch.zeros(()), [], []
    if kind == "hook":
        model.register_forward_hook(lambda *_: heard.append(1))
    with torch.no_grad():
        for _ in range(3):
            model(X, cache, kept)
    seen = {
        "attribute": model.calls,
        "argument": cache.item(),
        "list": len(kept),
        "hook": len(heard),
    }
    assert seen[kind] == 3
    if kind != "list":  # its form is another one in every call
        assert "a second call would be seen" in told.describe()


def test_outputs_that_cannot_be_compared_are_torchs(runs):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 2)

        def forward(self, x):
            return self.layer(x), np.arange(3)

    told = runs(planted.Counts())
    model = Mixed().eval()
    with torch.no_grad():
        for _ in range(2):
            assert len(model(X)) == 2
    assert "evaluated by torch" in told.describe()


def test_a_backend_that_is_not_here_is_told():
    value = BackendChoice(training=None, evaluation="nosuch", asked=True, unsafe=False)
    assert "no backend nosuch here" in settings.backend.SETTING.apply(torch, value).describe()


class Sleeps(nn.Module):
    """Slow, but for who knows how."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.seconds = 0.02

    def forward(self, x):
        time.sleep(self.seconds)
        return self.layer(x)


class Hurries(planted.Counts):
    """Does not sleep, or sleeps for longer."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def activate(self, model, optimizer, *, training):
        run = super().activate(model, optimizer, training=training)

        def hurried(model, batch):
            before, model.seconds = model.seconds, self.seconds
            try:
                return run(model, batch)
            finally:
                model.seconds = before

        return hurried


@pytest.mark.parametrize(("seconds", "stays"), [(0.0, True), (0.05, False)])
def test_who_is_not_asked_for_must_be_faster_in_turns(runs, monkeypatch, seconds, stays):
    monkeypatch.setattr(backend, "MIN_TORCH_S", 0.05)
    hurries = Hurries(seconds)
    told = runs(hurries, asked=False)
    model = Sleeps()
    evaluated(model, X, 2)
    assert hurries.calls == 0  # not before it may pay
    evaluated(model, X, 20)
    if stays:
        assert hurries.calls > 10
        assert "a model evaluated by counts, " in told.describe()
        assert "times as fast" in told.describe()
    else:
        assert hurries.calls == 1 + backend.NUM_TIMED
        assert "which is too little" in told.describe()


def test_random_numbers_go_on_as_without_it(runs):
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 2)

        def forward(self, x):
            return self.layer(x + torch.rand_like(x))

    runs(planted.Counts())
    model = Draws()
    torch.manual_seed(3)
    expected = [model.layer(X + torch.rand_like(X)).detach() for _ in range(3)]
    torch.manual_seed(3)
    assert all(torch.equal(evaluated(model, X), one) for one in expected)


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [
        (torch.ones(4), torch.full((4,), 1.5), 0.5),
        ((torch.ones(2), 3), (torch.ones(2), 3), 0.0),
        ((torch.ones(2), 3), (torch.ones(2), 4), float("inf")),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, float("inf")),
        (torch.ones(2), torch.ones(3), float("inf")),
        (torch.ones(2), torch.tensor([1.0, float("nan")]), float("inf")),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, float("inf")]), 0.0),
        (torch.ones(2), torch.ones(2).bfloat16(), float("inf")),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64) * 2, 1.0),
    ],
)
def test_how_far_outputs_are_apart(one, other, far):
    assert backend.relative_difference(one, other) == pytest.approx(far)
