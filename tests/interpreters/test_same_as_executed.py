"""A script in an interpreter that was forked sees, prints and ends as in one that was executed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interpreters import forked
from tests.interpreters.forked import Switch
from tests.launch.programs import LAUNCH, PYTHON, VIEW, environment, script
from tests.selected import cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="interpreters are forked on Linux")

SCRIPTS = {
    "what it sees": VIEW,
    "what it sees after torch": "import torch\n" + VIEW + "\nprint(sorted(sys.modules))",
    "what modules hold": """
import torch, sys
names = [name for name in sorted(sys.modules) if name.startswith(("torch", "numpy", "json"))]
for name in names:
    spec = sys.modules[name].__spec__
    print(name, spec and (spec.name, spec.origin, type(spec.loader).__name__))
    print(sorted((one, type(value).__name__) for one, value in vars(sys.modules[name]).items()
                 if not one.startswith("__")))
""",
    "where modules are that it has not imported": """
from importlib.util import find_spec
for name in ("torch", "numpy", "multiprocessing", "torch.nn"):
    spec = find_spec(name)
    print(spec.name, spec.origin, spec.has_location, spec.submodule_search_locations)
""",
    "what the first optimizer loads": """
import sys, torch
before = {name: dict(vars(module)) for name, module in sys.modules.items()}
import torch.utils._pytree, statistics
print(sorted(sys.modules.keys() - before.keys()), "sympy" in sys.modules)
torch.optim.Adam([torch.ones(2, requires_grad=True)])
print(sorted(sys.modules.keys() - before.keys()))
for name, attributes in sorted(before.items()):
    changed = sorted(one for one, value in vars(sys.modules[name]).items()
                     if attributes.get(one, before) is not value and one != "__warningregistry__")
    print(name, changed)
for name in sorted(sys.modules.keys() - before.keys()):
    print(name, [(one, type(value).__name__) for one, value in vars(sys.modules[name]).items()
                 if not one.startswith("__")])
print(len(torch.utils._pytree.SUPPORTED_NODES), len(torch.library._impls))
print(torch.manual_seed.__qualname__)
compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
print(compiled(torch.ones(3)), torch._dynamo.utils.counters["stats"])
""",
    "what is imported alone": """
import sys, torch
for name in ("torch.utils._python_dispatch", "torch.fx.experimental.symbolic_shapes", "sympy"):
    before = set(sys.modules)
    __import__(name)
    print(name, sorted(set(sys.modules) - before))
""",
    "threads": "import torch\nprint(torch.get_num_threads(), torch.get_num_interop_threads())",
    "numbers": """
import torch, random
torch.manual_seed(3)
print(torch.initial_seed(), torch.rand(3, dtype=torch.float64).tolist())
print((torch.ones(300, 300) @ torch.ones(300, 300)).sum().item())
""",
    "training": """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    loss = model(torch.rand(32, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
    "a module beside it": "import torch, wave\nprint(wave.__file__, wave.beside)",
    "imports by name": """
import sys, json
try:
    json.loads("{")
except ValueError as error:
    print(error)
print("json" in sys.modules, "numpy" in sys.modules, "multiprocessing" in sys.modules)
import numpy
print("torch" in sys.modules)
import torch.nn.utils
print(torch.nn.utils.weight_norm.__name__, torch.nn.utils is sys.modules["torch.nn.utils"])
""",
    "what is at the end": """
import atexit, sys, weakref, threading, time, torch
class Last:
    def __del__(self, print=print): print("deleted")
last = Last()
atexit.register(print, "atexit")
weakref.finalize(last, print, "finalized")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("end", end="")
sys.stdout.write("!")
print("error", file=sys.stderr)
""",
    "an exit code": "import torch, sys\nsys.exit(300)",
    "an exit with words": "raise SystemExit('told')",
    "an exit of an empty list": "raise SystemExit([])",
    "an exception": "import torch\ndef deep():\n    torch.ones(2) @ torch.ones(3)\ndeep()",
    "an exception with its cause": """
try:
    1 / 0
except ZeroDivisionError as error:
    raise ValueError("second") from error
""",
    "a hook for exceptions": """
import sys
sys.excepthook = lambda kind, error, trace: print("hook", kind, error, trace.tb_lineno)
raise ValueError("third")
""",
    "a syntax error": "x = (\n",
    "an interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('not reached')",
    "an interrupt that is not caught": "raise KeyboardInterrupt('typed')",
    "a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "a fault": "import ctypes\nctypes.string_at(0)",
    "an exit at once": "import os\nprint('lost', end='')\nos._exit(5)",
    "signals": """
import signal
print([(number.name, str(signal.getsignal(number))) for number in sorted(signal.valid_signals())
       if isinstance(number, signal.Signals) and "python_handler" not in str(number)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
""",
    "its input": "import sys\nprint(sys.stdin.read().upper(), sys.stdin.encoding, sys.stdin.mode)",
    "its output": """
import sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering,
          stream.write_through, stream is getattr(sys, f"__{stream.name[1:-1]}__"))
print("ä", flush=True)
sys.stdout.buffer.write(b"\\xff\\n")
""",
    "programs of its own": """
import subprocess, sys
print("first", flush=True)
for words in (["-c", "import sys; print(sys.argv, 'torch' in sys.modules)", "word"],
              ["-c", "import torch; raise ValueError('inner')"], ["-m", "json.tool", "--help"],
              ["-c", "import sys; sys.exit(9)"], ["-c", "import os; os.kill(os.getpid(), 9)"]):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd="/",
                          env={"PYTHONDONTWRITEBYTECODE": "1", "A": "b"})
    print(done)
print(subprocess.run([sys.executable, "-c", "print(input())"], input="given", text=True).returncode)
""",
    "programs that are executed in turn": """
import os, sys
print("lost", end="")
os.environ["TURN"] = str(int(os.environ.get("TURN", 0)) + 1)
if os.environ["TURN"] < "4":
    os.execve(sys.executable, [sys.executable, __file__, os.environ["TURN"]], os.environ)
if len(sys.argv) > 1:
    os.execv(sys.executable, [sys.executable, __file__])
import torch
print(sys.argv, sys.orig_argv[1:], torch.ones(1), os.environ["TURN"])
os.environ["LAST"] = "set"
os.execv(sys.executable, [sys.executable, "-c", "import os; print(os.environ['LAST'])"])
""",
    "exits of a program that executes": """
import atexit, os, sys, tempfile, weakref
class One: pass
one = One()
atexit.register(print, "of the first")
weakref.finalize(one, print, "of the first")
os.execve(sys.executable, [sys.executable, "-c", "print('second')"], os.environ)
""",
    "a folder of its parent's": """
import os, subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-c", "import tempfile; print('child')"])
    print(os.path.isdir(folder))
""",
    "workers that are spawned": """
import multiprocessing, sys
def work(number):
    import torch
    return torch.full((2,), number).sum().item(), __name__, "torch" in sys.modules
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(pool.map(work, range(4)))
""",
    "programs of its own after torch": """
import os, subprocess, sys, torch
from torch import nn
torch.manual_seed(3)
torch.rand(5)
nn.Module.__call__ = None
nn.Linear.extra = 1
del nn.ReLU.forward
torch.ones = None
torch.own = 1
torch.utils.data.own = torch.nn.modules.module._global_forward_hooks
torch.nn.modules.module._global_forward_hooks[1] = print
torch.serialization._package_registry.clear()
text = '''
import sys
print("torch" in sys.modules)
import torch
from torch import nn
print(torch.get_num_threads(), torch.ones(2))
print(hasattr(nn.Linear, "extra"), hasattr(torch, "own"), hasattr(torch.utils.data, "own"))
print(nn.ReLU()(torch.tensor([-1.0, 1.0])), len(torch.serialization._package_registry))
print(torch.nn.modules.module._global_forward_hooks)
model = nn.Linear(2, 2)
model(torch.ones(3, 2)).sum().backward()
print(model.bias.grad)
'''
for more in ({}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}):
    print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True,
                         env={**os.environ, **more}))
torch.set_num_threads(1)
print(subprocess.run([sys.executable, "-u", "-c", text], capture_output=True, text=True))
""",
    "programs of its own after changes of the library": """
import builtins, json, logging, multiprocessing.pool, multiprocessing.process, os, subprocess, sys
import warnings
text = '''
import builtins, json, logging, multiprocessing, os, sys, warnings
from multiprocessing import pool, process
import multiprocessing.pool
print(pool is sys.modules["multiprocessing.pool"], pool.Pool, json.load.__name__)
print(hasattr(builtins, "own"), hasattr(json, "own"), logging.root.handlers, logging.root.level)
print([one for one in warnings.filters if one[:3] == ("ignore", None, Warning)])
print(sys.excepthook, sys.unraisablehook, multiprocessing.current_process().name)
print(multiprocessing.Process().name, multiprocessing.active_children(), process._children)
print(logging.getLogger("one").level)
logging.warning("told")
warnings.warn("told")
'''
def work():
    multiprocessing.pool.Pool = json.load = None
    json.own = builtins.own = 1
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("one").setLevel(5)
    warnings.simplefilter("ignore")
    sys.excepthook = sys.unraisablehook = print
    multiprocessing.Process(name="never").name
    print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True))
    import torch
    print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True))
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
    work()
""",
    "programs of its own after work": """
import subprocess, sys, torch
a = torch.ones(600, 600, requires_grad=True)
(a @ a).exp().sum().backward()
torch.set_default_dtype(torch.float64)
text = "import torch; a = torch.ones(600, 600); print((a @ a).exp().sum(), a.dtype)"
print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True))
""",
    "a program on one CPU": """
import os, subprocess, sys, torch
os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
text = "import os, torch; print(torch.get_num_threads(), os.sched_getaffinity(0))"
print(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True))
os.execv(sys.executable, [sys.executable, "-c", text])
""",
    "descriptors": "import os\nprint(os.listdir('/proc/self/fd')[:3], os.isatty(0), os.isatty(1))",
    "the line buffer": "import sys, os\nprint('a', flush=True)\nos.write(1, b'b')\nprint('c')",
    "warnings": "import warnings\nwarnings.warn('told')\nwarnings.warn('old', DeprecationWarning)",
    "its own name": "import __main__, sys\nprint(__main__.__dict__.keys(), __main__.__file__)\n"
    "print(sys.modules['__main__'] is __main__, __builtins__)",
}


SHORT = (
    "what it sees after torch", "an exception", "an interrupt", "its output", "programs of its own",
    "programs that are executed in turn",
)  # fmt: skip
"""Scripts that run in `make test` too."""


@pytest.fixture(autouse=True)
def _never_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "MOST_EXECUTED", 0)


@contextmanager
def executed() -> Iterator[None]:
    """Have interpreters executed within the block."""
    before = Switch.is_on
    Switch.is_on = False
    try:
        yield
    finally:
        Switch.is_on = before


def same(folder: Path, *argv: str, stdin: str = "input", **changes: str) -> tuple[str, str]:
    """Run a program both ways; fail if something differs, and return what it has printed."""

    def run() -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            argv,
            input=stdin.encode(),
            capture_output=True,
            cwd=folder,
            env=environment(folder, **changes),
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    found = run()
    with executed():
        assert found == run()
    return found[1].decode(errors="replace"), found[2].decode(errors="replace")


@pytest.mark.parametrize("name", cases(SCRIPTS, SHORT))
def test_a_script_does_the_same(name: str, tmp_path: Path) -> None:
    script(tmp_path, "beside = 1", "wave.py")
    path = script(tmp_path, SCRIPTS[name], "one.py")
    out, err = same(tmp_path, PYTHON, str(path), "a word", "")
    assert out or err or name in {"a signal", "a fault", "an exit code", "an exit at once"}


LAUNCHED = ("what it sees after torch", "training", "an exception")


@pytest.mark.parametrize("name", cases(LAUNCHED, ["training"]))
def test_a_launched_script_does_the_same(name: str, tmp_path: Path) -> None:
    path = script(tmp_path, SCRIPTS[name], "one.py")
    # how much memory is kept, is different each time
    out, err = same(tmp_path, *LAUNCH, "--allocator", "default", str(path), "a word")
    assert out or name == "an exception"
    assert "cputrain: " in err


@pytest.mark.parametrize("words", [("-c", VIEW, "-x"), ("-m", "one.two", "y"), ("folder",)])
def test_commands_modules_and_folders_do_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("one/__init__.py", "one/two.py", "folder/__main__.py"):
        script(tmp_path, VIEW, name)
    out, _ = same(tmp_path, PYTHON, *words)
    assert out


def test_a_script_on_one_cpu_does_the_same(tmp_path: Path) -> None:
    text = "import os, torch\nprint(torch.get_num_threads(), os.sched_getaffinity(0))"
    path = script(tmp_path, text, "one.py")
    cpu = max(os.sched_getaffinity(0))
    out, _ = same(tmp_path, "taskset", "-c", str(cpu), PYTHON, str(path))
    assert out == f"1 {{{cpu}}}\n"
    same(tmp_path, "taskset", "-c", f"{cpu},0", PYTHON, str(path))


def test_no_two_scripts_draw_the_same_numbers(tmp_path: Path) -> None:
    text = """
import random, subprocess, sys, torch, numpy
print(torch.rand(1, dtype=torch.float64).item(), random.random(), numpy.random.rand())
if sys.argv[1:]:
    print(subprocess.run([sys.executable, __file__], capture_output=True, text=True).stdout)
"""
    path = script(tmp_path, text, "one.py")
    drawn = "".join(
        subprocess.check_output([PYTHON, str(path), "again"], text=True) for _ in range(2)
    ).split()
    assert len(set(drawn)) == 12


def test_a_program_is_forked_from_a_script_that_has_loaded_torch(tmp_path: Path) -> None:
    if not Switch.is_on:
        pytest.skip("interpreters are executed, as --execute asks for")
    text = """
import subprocess, sys
if sys.argv[1:]:
    import torch
    subprocess.run([sys.executable, __file__], check=True)
with open("/proc/self/cmdline") as file:
    print("interpreters/server.py" in file.read())
"""
    path = script(tmp_path, text, "one.py")
    assert subprocess.check_output([PYTHON, str(path), "again"], text=True) == "True\nTrue\n"


def test_a_script_without_buffers_does_the_same(tmp_path: Path) -> None:
    text = "print('a')\nimport ctypes, os\nctypes.CDLL(None).printf(b'of C')\nos._exit(1)"
    path = script(tmp_path, SCRIPTS["its output"] + "\n" + text, "one.py")
    out, _ = same(tmp_path, PYTHON, "-u", str(path))
    assert out.endswith("a\nof C")
    assert same(tmp_path, PYTHON, str(path), PYTHONUNBUFFERED="1")[0] == out


def test_sitecustomize_and_pythonpath_do_the_same(tmp_path: Path) -> None:
    script(tmp_path, "import sys\nprint('site', sys.argv, len(sys.path))", "sitecustomize.py")
    script(tmp_path, "print('user')", "usercustomize.py")
    path = script(tmp_path, VIEW, "folder/x.py")
    out, _ = same(tmp_path, PYTHON, str(path), PYTHONPATH=f"{tmp_path}{os.pathsep}")
    assert out.startswith("site")


@pytest.mark.parametrize(
    "changes",
    [
        {"PYTHONHASHSEED": "5"},
        pytest.param({"OMP_NUM_THREADS": "1"}, marks=pytest.mark.long),
        pytest.param({"PYTHONWARNINGS": "error"}, marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_what_is_read_at_the_start_is_as_it_was_asked_for(
    changes: dict[str, str], tmp_path: Path
) -> None:
    text = (
        "import torch, warnings\nprint(torch.get_num_threads(), hash('a'))\nwarnings.warn('told')"
    )
    if "PYTHONHASHSEED" not in changes:
        text = text.replace("hash('a')", "0")
    out, _ = same(tmp_path, PYTHON, str(script(tmp_path, text)), **changes)
    assert out


def test_it_is_a_child_in_a_session_of_its_own_and_has_the_descriptors_that_it_was_given() -> None:
    text = """
import os
print(os.getppid(), os.getsid(0) == os.getpid(), os.read({0}, 5), os.get_inheritable({0}))
"""
    read, write = os.pipe()
    os.write(write, b"given")
    done = subprocess.run(
        [PYTHON, "-c", text.format(read)],
        start_new_session=True,
        pass_fds=[read],
        capture_output=True,
        text=True,
        check=True,
    )
    os.close(read)
    os.close(write)
    assert done.stdout == f"{os.getpid()} True b'given' True\n"


def test_it_leads_a_process_group_of_its_own_by_the_time_it_is_known() -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [PYTHON, "-c", f"import os; os.read({read}, 1)"], process_group=0, pass_fds=[read]
    )
    assert os.getpgid(process.pid) == process.pid
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        "import atexit; atexit.register(print, 1)",
        "class Last:\n    def __del__(self, print=print): print(1)\nlast = Last()",
        "import sys; sys.stdout.close()",
    ],
    ids=["by the script", "at its exit", "by what is destroyed", "closed"],
)
def test_what_cannot_be_written_is_told_with_its_code(tmp_path: Path, text: str) -> None:
    def ended(program: str) -> tuple[int, str]:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [program, str(script(tmp_path, text))],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                env={**os.environ, "PYTHONUNBUFFERED": ""},
            )  # fmt: skip
        return done.returncode, done.stderr.strip().rpartition("\n")[2]

    other = tmp_path / "python"  # another name: it is executed
    other.symlink_to(PYTHON)
    assert ended(PYTHON) == ended(str(other))


def test_its_signals_are_blocked_and_ignored_as_those_of_who_starts_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        out, _ = same(tmp_path, PYTHON, str(script(tmp_path, SCRIPTS["signals"])))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGHUP, before)
    assert "SIGTERM" in out
    assert "('SIGHUP', '1')" in out


def _modules() -> list[str]:
    return [name for name in ("torch", "pytest") if name in sys.modules]


def test_workers_that_are_spawned_from_the_tests_are_forked_too() -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert "torch" not in pool.apply(_modules)
