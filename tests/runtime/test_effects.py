"""What a forward prints is printed as under plain python, wherever it is called on copies."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import cputrain
from cputrain.learn.twin import difference_from_twin
from cputrain.runtime.effects import EffectError, without_effects
from tests.runtime.telling import TELLING, Plain


def train(model: nn.Module) -> list[float]:
    """Train for some steps, by calls of a model."""
    torch.manual_seed(0)
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
        loss.backward()
        losses.append(loss.item())
    return losses


def made(make: type) -> nn.Module:
    torch.manual_seed(0)
    return make()  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", TELLING)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_divided_batch_prints_as_the_whole_one(
    make: type, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = train(made(make))
    printed = capsys.readouterr().out
    assert printed
    losses = train(cputrain.Split(made(make), replicas=2))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("make", TELLING)
def test_a_twin_prints_nothing(make: type, capsys: pytest.CaptureFixture[str]) -> None:
    model = made(make)
    difference = difference_from_twin(
        model, lambda each, *args: each(*args), (torch.randn(6, 4),), {}, lambda _: None
    )
    assert "calls" in difference or "writes" in difference
    assert not capsys.readouterr().out


def test_networks_that_print_nothing_have_twins_and_are_divided() -> None:
    model = made(Plain)
    assert not difference_from_twin(
        model, lambda each, *args: each(*args), (torch.randn(6, 4),), {}, lambda _: None
    )
    with without_effects():
        model(torch.randn(6, 4))


class Collecting(Plain):
    def change(self, x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return x


def test_callbacks_of_garbage_collection_are_no_part_of_a_forward(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tell(*_: object) -> None:
        print("collected")

    gc.callbacks.append(tell)
    try:
        with without_effects():
            made(Collecting)(torch.randn(6, 4))
    finally:
        gc.callbacks.remove(tell)
    assert "collected" in capsys.readouterr().out


def test_what_an_import_does_is_no_part_of_a_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_once.py").write_text(
        "exec('def make(kind):\\n kind.x = 1')\nclass Kind: pass\nmake(Kind)\nprint('loaded')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def forward() -> int:
        from imported_once import Kind

        return int(Kind.x)

    with without_effects():
        assert forward() == 1


def test_what_follows_an_import_is_a_part_of_it() -> None:
    def forward() -> None:
        import colorsys

        print(colorsys)

    with pytest.raises(EffectError, match="calls print"), without_effects():
        forward()


def test_a_profiler_of_the_script_is_left_alone() -> None:
    def profile(*_: object) -> None:
        pass

    sys.setprofile(profile)
    try:
        with pytest.raises(EffectError, match="a profiler"), without_effects():
            pass
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
