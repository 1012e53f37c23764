"""Server that has loaded torch, and forks processes that go on as `python SCRIPT` would.

It is run as a script by `tests.interpreters.forked`. Modules that it has loaded are hidden from the
script, until the script imports them: import hooks, modules that lie beside the script and
`sys.modules` are as in an interpreter that has just started. What a process that was forked
executes in its turn goes on without a new interpreter too, where that makes no difference: what a
script has changed in modules is undone, and where that cannot be, the interpreter is executed.
"""

import sys

STARTED = frozenset(sys.modules) - {"sitecustomize", "usercustomize"}
"""Modules of an interpreter that has just started; a system may have a sitecustomize of its own."""

import builtins  # noqa: E402

IMPORT = builtins.__import__
IMPORTED = {}
"""What each module imports while it is loaded."""


def recorded(name, variables=None, _=None, fromlist=(), level=0):
    """Import a module as `__import__` does, and record it."""
    imported = IMPORT(name, variables, None, fromlist, level)
    if variables is not None:
        if level:
            package = variables["__package__"].rsplit(".", level - 1)[0]
            name = f"{package}.{name}" if name else package
        names = {name, *(f"{name}.{one}" for one in fromlist or ())}
        IMPORTED.setdefault(variables.get("__name__"), set()).update(names)
    return imported


builtins.__import__ = recorded

import _posixsubprocess  # noqa: E402
import array  # noqa: E402
import atexit  # noqa: E402
import collections  # noqa: E402
import contextlib  # noqa: E402
import copy  # noqa: E402
import ctypes  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import importlib.machinery  # noqa: E402
import io  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import pkgutil  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
import site  # noqa: E402
import socket  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import warnings  # noqa: E402
import weakref  # noqa: E402

from huge_pages import collapse  # noqa: E402

del sys.modules["huge_pages"]

NONE = object()
LIBC = ctypes.CDLL(None)
EXECVE, FORK_EXEC, REGISTER = os.execve, _posixsubprocess.fork_exec, atexit.register


# modules


class Hidden:
    """Meta path finder of the modules that were loaded before the fork.

    A module is the one that was loaded before, if it is found in the same file. What one import
    loads is a group, of which all is shown when its first module is imported.
    """

    def __init__(self):
        self.modules = {}
        self.specs = {}
        self.children = {}
        self.groups = {}
        self.group_of = {}
        self.effects = {}
        self.exits = collections.defaultdict(list)
        self.shown = set()

    def add(self, group, modules, effects):
        """Add what the import of module `group` has loaded, and what else it has changed."""
        self.modules |= modules
        self.specs |= {name: getattr(one, "__spec__", None) for name, one in modules.items()}
        self.children |= {name: _child(self.modules, name) for name in modules}
        self.groups[group] = tuple(modules)
        self.group_of |= dict.fromkeys(modules, group)
        self.effects[group] = effects
        for call in _unregistered():
            name = getattr(call[0], "__module__", None)
            self.exits[name if name in modules else group].append(call)

    def find_spec(self, name, path=None, _=None):
        if self.specs.get(name) is None or not (
            self.group_of[name] in self.shown or self._is_found(name, path)
        ):
            return None
        spec = copy.copy(self.specs[name])  # with its origin, which may be looked at
        spec.loader = Loader(self, name)
        return spec

    def _is_found(self, name, path):
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            found = finder.find_spec(name, path)
            if found is not None:
                return found.origin == self.specs[name].origin
        return False

    def show(self, group):
        """Import all modules of a group, and change what their import changes."""
        self.shown.add(group)
        for name in self.groups[group]:
            # pytest, where it is the program, would load a module of tests anew
            if self.specs[name] is None or name.rpartition(".")[2].startswith("test_"):
                sys.modules[name] = self.modules[name]
            elif name not in sys.modules:
                importlib.import_module(name)
        # the import system has made modules attributes; some were replaced or deleted there
        for name in self.groups[group]:
            parent, _, child = name.rpartition(".")
            if self.children[name] is not NONE:
                vars(self.modules[parent])[child] = self.children[name]
            elif parent in self.modules:
                vars(self.modules[parent]).pop(child, None)
        for contents, change in self.effects[group]:
            contents.change(change)
        if group == "torch" and _is_single(os.environ):
            self.modules["torch"].set_num_threads(1)
        if not weakref.finalize._registered_with_atexit:
            REGISTER(weakref.finalize._exitfunc)
            weakref.finalize._registered_with_atexit = True

    def keep(self):
        """Have the end of the process leave as it is what was there before the fork.

        To clear the modules and to call the destructors of torch's libraries takes longer than most
        scripts.
        """
        for name in sys.modules.keys() & self.modules.keys():
            if sys.modules[name] is self.modules[name]:
                del sys.modules[name]
        LIBC.fflush(None)


class Loaded:
    """State of all modules right after `import torch`, to which it can be restored."""

    def __init__(self, modules):
        self.torch = modules["torch"]
        self.processes = modules["multiprocessing.process"]
        self.contents = {"logging": [Contents(modules["logging"].root.manager.loggerDict)]}
        """What modules hold, by their names; what several hold is under each."""
        for name, module in [*((name, sys.modules[name]) for name in STARTED), *modules.items()]:
            if name in OF_THE_PROCESS or not isinstance(module, type(sys)):
                continue
            found = self.contents.setdefault(name, [])
            found.append(Contents(module))
            for one, value in vars(module).items():
                if not one.startswith("__"):
                    found += map(Contents, _parts(value, name))
        self.state = self._state()
        self.threads = self.torch.get_num_threads()

    def can_be_restored(self, environment):
        """Return whether a program finds torch after `restore` as after a new import."""
        return (
            HIDDEN.shown <= {"torch"}
            and self._state() == self.state
            and (self.torch.get_num_threads() == self.threads or _is_single(environment))
            and not any(name.startswith("cputrain.runtime") for name in sys.modules)
            and not _has_native_threads()
        )

    def restore(self, names):
        """Undo what was changed in modules of these names, their containers and torch's classes.

        A look at the others would copy their memory, which is shared until then.
        """
        for name in self.contents.keys() & names:
            for one in self.contents[name]:
                one.restore()
        self.processes._process_counter = itertools.count(1)
        warnings._filters_mutated()

    def changes(self):
        """Return what was changed, each with its change."""
        every = {id(one.value): one for found in self.contents.values() for one in found}
        return [(one, change) for one in every.values() if (change := one.changes())]

    def _state(self):
        loaded = self.torch
        return (
            len(loaded.library._impls),
            len(loaded.library._defs),
            loaded.get_default_dtype(),
            loaded.is_grad_enabled(),
            loaded.is_inference_mode_enabled(),
            loaded.is_autocast_enabled("cpu"),
            loaded.are_deterministic_algorithms_enabled(),
            loaded.get_float32_matmul_precision(),
            loaded._C._get_privateuse1_backend_name(),
        )


def _parts(value, name):
    """Return what is restored of a value in a module; of its own instances, the attributes."""
    if type(value) is type(os.environ):  # which are set for the program that comes
        return []
    if type(value) in CONTAINERS:
        return [value]
    if issubclass(type(value), type):  # isinstance may make the value warn
        return [value] if _is_torchs(_module_of(value) or "") else []
    if _module_of(type(value)) == name and not _is_torchs(name) and hasattr(value, "__dict__"):
        attributes = vars(value)
        return [attributes, *(part for part in attributes.values() if type(part) in CONTAINERS)]
    return []


OF_THE_PROCESS = {
    "__main__",
    "_frozen_importlib",
    "_frozen_importlib_external",
    "posix",
    "sys",
    "threading",
}
"""Modules whose state is this process's: threads, imports, streams and variables."""

CONTAINERS = {dict, list, set, collections.OrderedDict, collections.defaultdict}


class Contents:
    """Attributes of a module or class, or elements of a container, at an earlier time."""

    def __init__(self, value):
        self.value = value
        self.has_attributes = isinstance(value, type | type(sys))
        self.before = dict(vars(value)) if self.has_attributes else copy.copy(value)

    def changes(self):
        """Return what was added or replaced since then."""
        now = vars(self.value) if self.has_attributes else self.value
        if isinstance(now, list):
            return [one for one in now if not any(one is other for other in self.before)]
        if isinstance(now, set):
            return now - self.before
        return {
            name: value for name, value in now.items() if self.before.get(name, NONE) is not value
        }

    def change(self, change):
        """Make a change again."""
        if isinstance(self.value, type):
            for name, value in change.items():
                setattr(self.value, name, value)
        elif isinstance(change, list):
            self.value.extend(change)
        else:
            (vars(self.value) if self.has_attributes else self.value).update(change)

    def restore(self):
        now = vars(self.value) if self.has_attributes else self.value
        if self._is_as_before(now):
            return
        if isinstance(self.value, type):
            for name in {**now, **self.before}:
                if now.get(name, NONE) is not self.before.get(name, NONE):
                    self._restore_attribute(name)
            return
        KEPT.append(copy.copy(now))
        add = now.extend if isinstance(now, list) else now.update
        now.clear()  # what is cleared may be the builtins
        add(self.before)

    def _restore_attribute(self, name):
        with contextlib.suppress(AttributeError, TypeError):  # those of the interpreter's own
            if name in self.before:
                setattr(self.value, name, self.before[name])
            else:
                delattr(self.value, name)

    def _is_as_before(self, now):
        if len(now) != len(self.before):
            return False
        if isinstance(now, set):
            return now == self.before
        pairs = zip(now, self.before, strict=True)
        if isinstance(now, list):
            return all(one is other for one, other in pairs)
        return all(one is other and now[one] is self.before[other] for one, other in pairs)


def _has_native_threads():
    """Return whether a native library has threads without a name, as OpenMP's are."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{thread}/comm") as file,
        ):
            names.append(file.read())
    with open("/proc/self/comm") as file:
        return names.count(file.read()) > threading.active_count()


def _is_torchs(name):
    return name.partition(".")[0] in {"torch", "torchgen", "functorch"}


def _module_of(value):
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else None


def _child(modules, name):
    parent, _, child = name.rpartition(".")
    return vars(modules[parent]).get(child, NONE) if parent in modules else NONE


class Loader:
    """Loader of one hidden module."""

    def __init__(self, hidden, name):
        self.hidden = hidden
        self.name = name

    def create_module(self, _):
        return self.hidden.modules[self.name]

    def exec_module(self, module):
        # past a __setattr__ of the module's own
        module.__dict__["__spec__"] = self.hidden.specs[self.name]
        if self.name == "torch":
            module.default_generator.seed()
        elif self.name == "numpy.random":
            module.seed()
        elif self.name == "multiprocessing":
            sys.modules["__mp_main__"] = sys.modules["__main__"]
        for call, words, options in self.hidden.exits[self.name]:
            _register(call, *words, **options)
        group = self.hidden.group_of[self.name]
        if group in self.hidden.shown:
            return
        if self.name == group:
            self.hidden.show(group)
            return
        for name in sorted(IMPORTED.get(self.name, set()) & self.hidden.modules.keys()):
            if name not in sys.modules:
                importlib.import_module(name)


def load(name):
    """Import a module, and record what is imported meanwhile."""
    builtins.__import__ = recorded
    try:
        importlib.import_module(name)
    finally:
        builtins.__import__ = IMPORT


def load_and_hide():
    """Load what scripts load, and hide it; return its finder and its state.

    The first optimizer of a script imports `torch._dynamo`, which takes as long as torch.
    """
    hidden = Hidden()
    gc.disable()
    load("torch")
    hidden.add("torch", _later_than(STARTED), [])
    loaded = Loaded(hidden.modules)
    before, finders = frozenset(sys.modules), list(sys.meta_path)
    load("torch._dynamo")
    hidden.add("torch._dynamo", _later_than(before), loaded.changes())
    loaded.restore(before)
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name not in STARTED]:
        del sys.modules[name]
    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.BuiltinImporter), hidden)
    return hidden, loaded


def _later_than(names):
    return {
        name: module
        for name, module in sys.modules.items()
        if name not in names and module is not sys.modules["__main__"]
    }


# processes


WORTH_COLLAPSING = 8
"""Processes of a server, of which many more are to be expected."""


def serve(channel):
    """Fork a process for each request; return it and its files there, and None at the end."""
    num_forked = 0
    while True:
        message, ancillary, _, _ = channel.recvmsg(1 << 20, socket.CMSG_SPACE(64 * 4))
        if not message:
            return None
        num_forked += 1
        if num_forked == WORTH_COLLAPSING:
            collapse()
        files = array.array("i")
        for _, _, data in ancillary:
            files.frombytes(data)
        read, write = os.pipe()
        waits, goes = os.pipe()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                request = json.loads(message)
                if request["new_session"]:
                    os.setsid()
                if request["new_group"]:
                    os.setpgid(0, 0)
                os.write(write, str(os.getpid()).encode())
                os.close(goes)
                os.read(waits, 1)
                for file in (read, write, waits):
                    os.close(file)
                return request, list(files)
            os._exit(0)
        os.close(write)
        for file in files:
            os.close(file)
        told = os.read(read, 64)
        os.close(read)
        os.waitpid(child, 0)  # from now on the client, a subreaper, is the parent
        for file in (goes, waits):
            os.close(file)
        channel.send(told)


def execve(program, argv, environment):
    """Replace this process by a program."""
    if _is_followed(program, argv, environment) and threading.active_count() == 1:
        follow(argv, environment, is_nested=True)
    EXECVE(program, argv, environment)


def execv(program, argv):
    """Replace this process by a program with its variables."""
    execve(program, argv, os.environ)


def fork_exec(*given):
    """Start a program, as `_posixsubprocess.fork_exec` does."""
    argv, programs, closes, kept, folder, variables, stdin, _, _, stdout, _, stderr = given[:12]
    _, errors, _, new_session, group, gid, gids, uid, umask, prepare = given[12:22]
    argv = [os.fsdecode(word) for word in argv]
    environment = (
        dict(os.environ)
        if variables is None
        else dict(os.fsdecode(variable).split("=", 1) for variable in variables)
    )
    if (
        not _is_followed(os.fsdecode(programs[0]), argv, environment)
        or not closes
        or (gid, gids, uid, umask) != (None, None, None, -1)
    ):
        return FORK_EXEC(*given)
    # an interrupt is not one of what is called after a fork, where it would be ignored
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return child
    _reset_handlers()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    sources = [
        file if file == -1 else fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
        for file in (stdin, stdout, stderr)
    ]
    for number, source in enumerate(sources):
        if source != -1:
            os.dup2(source, number)
    if folder is not None:
        os.chdir(folder)
    if new_session:
        os.setsid()
    if group >= 0:
        os.setpgid(0, group)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder itself
            if int(name) > 2:
                os.set_inheritable(int(name), int(name) in kept and int(name) != errors)
    if prepare is not None:
        prepare()
    return follow(argv, environment, is_nested=True)


def _is_followed(program, argv, environment):
    """Return whether a program is python with a script, with what it reads at its start as here."""
    return (
        program == sys.executable
        and _script(argv) is not None
        and _is_at_start(environment)
        and (not HIDDEN.shown or LOADED.can_be_restored(environment))
    )


def _is_at_start(environment):
    """Return whether variables and CPU mask are the server's, or limit it to one thread."""
    variables, mask = at_start(environment), os.sched_getaffinity(0)
    if "OMP_NUM_THREADS" not in AT_START and variables.get("OMP_NUM_THREADS") == "1":
        del variables["OMP_NUM_THREADS"]
    return variables == AT_START and (mask == MASK or len(mask) == 1)


def _is_single(environment):
    """Return whether torch is limited to one thread, unlike in the server."""
    return "OMP_NUM_THREADS" not in AT_START and (
        environment.get("OMP_NUM_THREADS") == "1" or len(os.sched_getaffinity(0)) == 1
    )


def _script(argv):
    """Return the words from the script on; None if there are options that make a difference."""
    words = argv[1:]
    if words[: len(FLAGS)] == FLAGS:
        words = words[len(FLAGS) :]
    while words[:1] and words[0] in {"-P", "-u"}:
        words = words[1:]
    is_script = words and (not words[0].startswith("-") or words[0] in {"-c", "-m"})
    return words if is_script else None


def at_start(environment):
    """Return the variables that are read while an interpreter starts or libraries are loaded."""
    return {name: value for name, value in environment.items() if re.match(PATTERN, name)}


def follow(argv, environment, *, is_nested):
    """Go on as a program that has just been executed; never return."""
    names = frozenset(sys.modules)
    _forget()
    if is_nested:
        LOADED.restore(names)
    # what is caught is reset, what is ignored is not; and then as Python does
    _reset_handlers()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder itself
            if int(name) > 2 and not os.get_inheritable(int(name)):
                os.close(int(name))
    environment = dict(environment)  # it may be the one that is cleared
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = argv
    sys.orig_argv[:] = argv
    options = argv[: -len(_script(argv))]
    is_buffered = "-u" not in options and not environment.get("PYTHONUNBUFFERED")
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        stream = _stream(number, is_buffered=is_buffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        _set_buffer_of_c(name, 2 if not is_buffered else int(os.isatty(number)))
    code = _ended(_script(argv), is_safe="-P" in options)
    if is_nested:  # nothing of the program before may be cleared
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.flush()
        LIBC.fflush(None)
        os._exit(code)
    _end(code)


def _reset_handlers():
    """Have signals do what they do by default, as after exec; ignored ones remain ignored."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _end(code):
    """Exit as Python does, but without freeing interned strings and types."""
    streams = [sys.__stdout__, sys.__stderr__]

    def exit_early(event, _, exit_process=os._exit):
        if event == "cpython.PyInterpreterState_Clear":
            for stream in streams:
                if stream is not None and not stream.closed:
                    stream.flush()  # if it cannot, Python ends with another code
            exit_process(code)

    sys.addaudithook(exit_early)
    ctypes.pythonapi.Py_Exit(code)


def _forget():
    """Forget what was loaded and registered since the server started.

    Nothing of it is destroyed: it would close files by numbers that are others' by now.
    """
    gc.freeze()
    KEPT.append([dict(sys.modules), sys.stdin, sys.stdout, sys.stderr, *REGISTERED])
    KEPT.append(dict(weakref.finalize._registry))
    for name in [name for name in sys.modules if name not in STARTED]:
        del sys.modules[name]
    HIDDEN.shown.clear()
    for hook in ("breakpointhook", "displayhook", "excepthook", "unraisablehook"):
        setattr(sys, hook, getattr(sys, f"__{hook}__"))
    sys.meta_path[:] = META_PATH
    sys.path[:] = PATH
    _unregistered()
    weakref.finalize._registry.clear()
    weakref.finalize._registry.update(FINALIZED)


def _register(call, /, *words, **options):
    REGISTERED.append((call, words, options))
    return REGISTER(call, *words, **options)


def _unregistered():
    """Return the calls that were registered for the end of the process, and are no longer."""
    calls = [call for call in REGISTERED if call[0] != weakref.finalize._exitfunc]
    for call, _, _ in REGISTERED:
        atexit.unregister(call)
    REGISTERED.clear()
    atexit.unregister(weakref.finalize._exitfunc)
    weakref.finalize._registered_with_atexit = False
    return calls


def _stream(number, *, is_buffered):
    try:
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
    except OSError:  # closed
        return None
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    buffered = io.BufferedWriter if number else io.BufferedReader
    stream = io.TextIOWrapper(
        buffered(raw) if is_buffered or not number else raw,
        encoding=ENCODING,
        errors="backslashreplace" if number == 2 else ERRORS,
        line_buffering=is_buffered and (number == 2 or os.isatty(number)),
        write_through=not is_buffered,
    )
    stream.mode = raw.mode[:1]
    return stream


def _set_buffer_of_c(name, mode):
    """Have C's stream, which libraries print to, use a buffer (0), a line's (1) or none (2)."""
    stream = ctypes.c_void_p.in_dll(LIBC, name)
    LIBC.__fpurge(stream)  # what was not written is lost, as in a program that is replaced
    LIBC.setvbuf(stream, None, mode, 8192)


def _ended(words, *, is_safe):
    """Run a script to its end; return its exit code."""
    try:
        _run(words, is_safe=is_safe)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)  # in this thread, which it ends at once
        return 1
    return 0


def _run(words, *, is_safe):
    kind, *rest = words
    sys.argv[:] = words if kind not in {"-c", "-m"} else [kind, *rest[1:]]
    entries = os.environ.get("PYTHONPATH", "")
    entries = map(os.path.abspath, entries.split(os.pathsep) if entries else ())
    sys.path[:] = dict.fromkeys([*entries, *sys.path])
    importlib.invalidate_caches()
    main = type(sys)("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=__builtins__)
    main.__loader__ = importlib.machinery.BuiltinImporter
    sys.modules["__main__"] = main
    site.execsitecustomize()
    if site.ENABLE_USER_SITE:
        site.execusercustomize()
    is_package = kind not in {"-c", "-m"} and pkgutil.get_importer(kind) is not None
    if kind == "-m" or is_package:
        import runpy

        if not is_safe or kind != "-m":
            sys.path.insert(0, os.getcwd() if kind == "-m" else os.path.abspath(kind))
        runpy._run_module_as_main(rest[0] if kind == "-m" else "__main__", kind == "-m")
        return
    if kind == "-c":
        if not is_safe:
            sys.path.insert(0, "")
        code = compile(rest[0] + "\n", "<string>", "exec", dont_inherit=True)
    else:
        if not is_safe:
            sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
        kind = os.path.abspath(kind)
        main.__file__ = kind
        main.__cached__ = None
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", kind)
        with open(kind, "rb") as file:
            code = compile(file.read(), kind, "exec", dont_inherit=True)
    exec(code, main.__dict__)


# the signals of a process that is forked are those of who asks for it
signal.pthread_sigmask(signal.SIG_SETMASK, ())
signal.signal(signal.SIGINT, signal.default_int_handler)
REGISTER(lambda: HIDDEN.keep())  # the first: it is called after all others

REGISTERED, KEPT = [], []
os.execve = execve
os.execv = execv
_posixsubprocess.fork_exec = subprocess._fork_exec = fork_exec
atexit.register = _register
channel = socket.socket(fileno=int(sys.argv[1]))
HIDDEN, LOADED = load_and_hide()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(HIDDEN.modules))
LIBC.on_exit(LIBC._exit, None)
PATTERN = sys.argv[2]
for name in sys.argv[3:]:
    del os.environ[name]
AT_START = at_start(os.environ)
MASK = os.sched_getaffinity(0)
FLAGS = subprocess._args_from_interpreter_flags()
ENCODING, ERRORS = sys.stdout.encoding, sys.stdout.errors
FINALIZED = dict(weakref.finalize._registry)
for finalizer in FINALIZED.values():
    finalizer.atexit = False  # torch's operators, which nobody sees to go
META_PATH = tuple(sys.meta_path)
PATH = tuple(sys.path[1:])
gc.freeze()
gc.enable()
channel.send(b"ready")
served = serve(channel)
if served is not None:
    request, files = served
    channel.close()
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    above = max(request["files"]) + 1  # none of them is overwritten below
    sources = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for number, source in zip(request["files"], sources, strict=True):
        os.dup2(source, number)
    for file in files:
        if file not in request["files"]:
            os.close(file)
    os.chdir(request["folder"])
    if request["network"] is not None:
        with open(f"/run/netns/{request['network']}", "rb") as file:
            if LIBC.setns(file.fileno(), 0) != 0:
                sys.exit(f"no network namespace {request['network']}")
    if request["cpu"] is not None:
        os.sched_setaffinity(0, [request["cpu"]])
    follow(request["argv"], request["environment"], is_nested=False)
