"""What is compiled once is read from Inductor's cache by later processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cputrain.step.compiled_step import find_cpp_compiler
from cputrain.step.compiler_probes import _remembered

TRAINS = """
import torch
from torch._dynamo.utils import counters
from cputrain import Step
from torch._inductor.cpu_vec_isa import VecISA
probes = []
original = VecISA._probe_load
def probe(self, path):
    probes.append(path)
    return original(self, path)
VecISA._probe_load = probe
model = torch.nn.Linear(4, 2)
step = Step(model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1))
for _ in range(6):
    step(torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    step.wait()
print(counters["inductor"]["fxgraph_cache_hit"], bool(probes))
"""


@pytest.mark.long
@pytest.mark.executed
@pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch._inductor.cpu_vec_isa")
    from torch._inductor.cpu_vec_isa import VecISA

    if not hasattr(VecISA, "_probe_load"):
        pytest.skip("this torch loads no libraries to try them")
    outputs = [
        subprocess.run(
            [sys.executable, "-c", TRAINS],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert outputs == ["0 True\n", "1 False\n"]


def test_only_what_was_loaded_is_remembered(tmp_path: Path) -> None:
    answers, asked = [False, True, True], []

    def probe(_: object, path: str) -> bool:
        asked.append(path)
        return answers[len(asked) - 1]

    library = tmp_path / "x.so"
    library.write_bytes(b"")
    remembered = _remembered(probe)
    assert [remembered(None, str(library)) for _ in range(4)] == [False, True, True, True]
    assert len(asked) == 2
    os.utime(library, (2**32, 2**32))  # it was compiled again
    assert remembered(None, str(library))
    assert len(asked) == 3
    assert not _remembered(lambda *_: False)(None, str(tmp_path / "gone.so"))
