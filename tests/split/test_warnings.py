"""A warning names the line of the script that called the model."""

from __future__ import annotations

import torch
from torch import nn

from cputrain import Split


class Center(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_a_warning_points_at_the_users_line(recwarn) -> None:
    model = Split(nn.Sequential(nn.Linear(4, 4), Center()), replicas=2)
    line = test_a_warning_points_at_the_users_line.__code__.co_firstlineno + 3
    model(torch.ones(8, 4))
    (warning,) = [one for one in recwarn if "cputrain.Split" in str(one.message)]
    assert "reduces the batch" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line)
