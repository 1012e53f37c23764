"""What is read from the output of a job."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cputrain.many.output import last_error, last_lines, last_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ('{"loss": 0.5, "accuracy": 0.9}\n', {"loss": 0.5, "accuracy": 0.9}),
        ('{"loss": 0.5}\nsaved in out.pt\n', {"loss": 0.5}),
        ('{"loss": 0.5}\n{"loss": 0.25}\n', {"loss": 0.25}),
        ('{"loss": 0.5, "curve": [1, 2], "name": "a", "x": null}', {
            "loss": 0.5, "name": "a", "x": None}),
        ("epoch 3 loss 0.125\n", {"loss": 0.125}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.345\n", {"loss": 2.345}),
        ("loss=1e-3 acc=97%\n", {"loss": 1e-3}),
        ("loss: -.5\nbye\n", {"loss": -0.5}),
        ("step 5\n0.75\n", {"loss": 0.75}),
        ("0.75\ndone\n", {}),
        ("{not json}\nloss 3\n", {"loss": 3.0}),
        ("a\rb\r 10%|#  | loss 0.5\r100%|###| loss 0.25\n", {"loss": 0.25}),
        ("loss 0.5\ncputrain: fused optimizers (1)\n", {"loss": 0.5}),
        ("losses of v2\n", {}),
    ],
)  # fmt: skip
def test_the_last_value_is_read(tmp_path: Path, text: str, expected: dict[str, object]) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(text.encode())
    assert last_values(last_lines(str(log))) == expected


def test_a_loss_that_is_no_number_is_read() -> None:
    assert math.isnan(last_values(["loss nan"])["loss"])


def test_only_the_end_of_a_long_output_is_read(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"loss 1\n" * 200_000 + b"\xff\xfeloss 2\n")
    assert last_values(last_lines(str(log))) == {"loss": 2.0}


def test_an_output_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert last_lines(str(tmp_path / "none.log")) == []


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "it printed nothing"),
        (["Traceback (most recent call last):", 'File "x.py"', "ValueError: no", "bye"],
         "ValueError: no"),
        (["torch.cuda.OutOfMemoryError: x"], "torch.cuda.OutOfMemoryError: x"),
        (["cannot open data"], "cannot open data"),
    ],
)  # fmt: skip
def test_the_last_line_of_a_traceback_is_the_error(lines: list[str], error: str) -> None:
    assert last_error(lines) == error
