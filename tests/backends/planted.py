"""Backends for tests, installed as other packages install theirs. A probe loads no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from cputrain.backends import Available, Unavailable


class Planted:
    """What they have in common."""

    title = "planted"
    purpose = "tests"
    torch = "any"
    legacy = False
    trains = False
    evaluates = True
    in_place = False

    def probe(self, host):
        return Available(version="1.0")

    def load(self):
        pass

    def environment(self):
        return {}

    def activate(self, model, optimizer, *, training):
        return type(model).__call__


class Remembers(Planted):
    """Right, and faster: it computes nothing twice."""

    name = "remembers"
    factor = 1.0

    def changes(self, weight):
        """What is another number once it was written to."""
        return float(weight.sum())

    def activate(self, model, optimizer, *, training):
        known = {}

        def run(model, batch):
            key = (id(batch), *map(self.changes, model.parameters()))
            if key not in known:
                known[key] = model(batch) * self.factor
            return known[key]

        return run


class ByVersion(Remembers):
    """Believes what torch says of writes. Fused optimizers do not."""

    name = "by-version"

    def changes(self, weight):
        return weight._version


class Wrong(Remembers):
    """As fast, and one in a hundred off."""

    name = "wrong"
    factor = 1.01


class Slow(Planted):
    """Right, and slower."""

    name = "slow"

    def activate(self, model, optimizer, *, training):
        def run(model, batch):
            for _ in range(3):
                model(batch)
            return model(batch)

        return run


class Stale(Planted):
    """Computes with the weights that it has seen first, and gives gradients to those there are."""

    name = "stale"
    trains = True

    def activate(self, model, optimizer, *, training):
        from torch.func import functional_call

        first = {name: one.detach().clone() for name, one in model.named_parameters()}

        def run(model, batch):
            weights = {
                name: first[name] + (one - one.detach()) for name, one in model.named_parameters()
            }
            return functional_call(model, weights, (batch,))

        return run


class Legacy(Remembers):
    """Faster, and without anybody who mends it."""

    name = "legacy"
    legacy = True


class NotImported(Planted):
    name = "not-imported"

    def load(self):
        raise ImportError("undefined symbol: _ZN5torch")


class NotBesideTorch(Planted):
    """Its import fails where torch is there: after the time that a probe has for that."""

    name = "not-beside-torch"

    def load(self):
        import sys

        if "torch" in sys.modules:
            raise ModuleNotFoundError("No module named 'deprecated'")


class NotHere(Planted):
    name = "not-here"

    def probe(self, host):
        return Unavailable(reason=f"it is not for {host.system}", do="Wait for it.")


class ProbeFails(Planted):
    name = "probe-fails"

    def probe(self, host):
        raise ValueError("of its own")


class Crashes(Planted):
    name = "crashes"

    def probe(self, host):
        os.kill(os.getpid(), signal.SIGSEGV)


class Hangs(Planted):
    name = "hangs"

    def probe(self, host):
        time.sleep(600)


class Prints(Planted):
    """Says things where nobody wants to hear them."""

    name = "prints"

    def probe(self, host):
        print("{}", flush=True)
        os.write(1, b"hello\n")
        return Available(version="1.0", notes="talks")


class FailsInTraining(Planted):
    name = "fails-in-training"
    trains = True

    def activate(self, model, optimizer, *, training):
        if training:
            raise RuntimeError("no kernel for this")
        return type(model).__call__


class DiesInTraining(Planted):
    name = "dies-in-training"
    trains = True

    def activate(self, model, optimizer, *, training):
        if training:
            os.kill(os.getpid(), signal.SIGABRT)
        return type(model).__call__


class StartsOthers(Planted):
    """As compilers do."""

    name = "starts-others"

    def activate(self, model, optimizer, *, training):
        subprocess.Popen(["sleep", "600"])
        return type(model).__call__


class Counts(Planted):
    """Right; says what it was asked for, and how often it was called."""

    name = "counts"
    trains = True

    def __init__(self):
        self.asked = []
        self.calls = 0

    def activate(self, model, optimizer, *, training):
        self.asked.append((training, optimizer))
        call = type(model).__call__

        def run(*args, **options):
            self.calls += 1
            return call(*args, **options)

        return run


class FailsLater(Planted):
    """At what it has run once."""

    name = "fails-later"

    def activate(self, model, optimizer, *, training):
        calls = []

        def run(model, batch):
            calls.append(batch)
            if len(calls) > 1:
                raise RuntimeError("no kernel for this")
            return model(batch)

        return run


class Variables(Planted):
    """Needs a variable."""

    name = "variables"

    def environment(self):
        return {"PLANTED": "1"}

    def activate(self, model, optimizer, *, training):
        assert os.environ["PLANTED"] == "1"
        return type(model).__call__


ALL = {
    one.name: one.__name__
    for one in (
        Remembers, Wrong, Slow, Stale, Legacy, NotImported, NotBesideTorch, NotHere, ProbeFails,
        Crashes, Hangs, Prints, FailsInTraining, DiesInTraining, StartsOthers, Variables,
        Counts, FailsLater, ByVersion,
    )
}  # fmt: skip
