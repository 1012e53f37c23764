"""Setting `backend`: kernels of another library for torch's operators, if verified.

The caller of the planner passes the verdicts on backends, as an examination needs processes.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.record import Record
from cputrain.settings.core.decision import Change, Decision, Origin
from cputrain.settings.core.setting import ARITHMETIC, Setting
from cputrain.settings.core.values import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Request, UserValue
    from cputrain.settings.core.setting import Applied

UNSAFE = "--unsafe"
"""Option that allows a backend with wrong results."""

PROVED = "cputrain info --backends --measure"
"""Command that examines correctness and speed of backends."""


class Suits(Record):
    """Verdict on a backend, for training or for evaluation."""

    claims: bool = True
    """Whether the backend supports this mode."""

    fault: str = ""
    """Reason why its results are wrong; "" if they are correct."""

    gain: float | None = None
    """Speed-up over torch; None if any kind of layer is slower."""

    seen: str = ""
    """Summary of the measurement."""


class Candidate(Record):
    """A backend other than the default, with its verdicts."""

    name: str
    """Name that `--backend` takes."""

    environment: dict[str, str] = {}
    """Environment variables that the backend needs."""

    training: Suits
    """Verdict for training."""

    evaluation: Suits
    """Verdict for evaluation without gradients."""

    unsafe: bool = False
    """Whether the user allows it despite a negative verdict."""


class BackendChoice(Record):
    """Backends that compute in place of torch."""

    training: str | None
    """Name of the backend in training; None for torch."""

    evaluation: str | None
    """Name of the backend in evaluation without gradients; None for torch."""

    asked: bool
    """Whether the user named the backend."""

    unsafe: bool
    """Whether the user allows it despite a negative verdict."""


class BackendSetting(Setting[BackendChoice | None]):
    """Backends in training and in evaluation; None for torch's own kernels."""

    name = "backend"
    order = 200
    group = ARITHMETIC
    takes = "auto|NAME"
    help = "kernels for torch's operations (auto: torch's own, unless others are proved better)"
    rule = (
        '{"training": a name or null, "evaluation": the same, "asked": true or false, '
        '"unsafe": true or false}, or null'
    )
    plain = "default"
    variables = frozenset(
        {"ZENDNNL_MATMUL_WEIGHT_CACHE", "ZENDNNL_ZP_COMP_CACHE", "ZENDNNL_ENABLE_POSTOP_CACHE"}
    )

    def decide(self, machine: Machine, request: Request) -> Decision[BackendChoice | None]:
        """Return torch's kernels, unless the user names a backend or one is verified and faster.

        Raises:
            UsageError: The backend is not available, computes wrong results, or conflicts with
                another setting.
        """
        user = request.setting(self.name)
        against = _against(request)
        if user is None:
            return self._best(request, against)
        where, name = user.where, user.value
        if name == "default":
            return self._torch_kernels(f"set by {where}", Origin.USER, request, against)
        if against:
            raise UsageError(
                where, f"does not go with {against}", found=name, do="Leave one of the two out."
            )
        candidate = next(
            (candidate for candidate in request.backends if candidate.name == name), None
        )
        if candidate is None:
            raise UsageError(
                where, "must be auto, default or an available backend", found=repr(name),
                do="cputrain info --backends lists them; a running process cannot change it.",
            )  # fmt: skip
        return self._named(user, candidate)

    def _best(self, request: Request, against: str) -> Decision[BackendChoice | None]:
        """Return the fastest verified backends for training and for evaluation."""
        training = None if against else _fastest(request.backends, "training")
        evaluation = None if against else _fastest(request.backends, "evaluation")
        if training is None and evaluation is None:
            reason = "none of the others is known to be right and faster here"
            return self._torch_kernels(reason, Origin.RULE, request, against)
        parts = [
            f"for {what}, {candidate.name} was {getattr(candidate, what).seen}"
            for what, candidate in (("training", training), ("evaluation", evaluation))
            if candidate is not None
        ]
        return self._others(training, evaluation, " and ".join(parts), Origin.MEASURED, asked=False)

    def _named(self, user: UserValue, candidate: Candidate) -> Decision[BackendChoice | None]:
        """Return the backend that the user named, in the modes in which it is correct."""
        faults = {what: getattr(candidate, what).fault for what in ("training", "evaluation")}
        said = "; ".join(f"{what}: {fault}" for what, fault in faults.items() if fault)
        if all(faults.values()) and not candidate.unsafe:
            raise UsageError(
                user.where, "must be a backend that is right", found=f"{candidate.name}: {said}",
                do=f"Leave it out; {UNSAFE} uses it all the same.",
            )  # fmt: skip
        training, evaluation = (
            candidate if suits.claims and (candidate.unsafe or not suits.fault) else None
            for suits in (candidate.training, candidate.evaluation)
        )
        decision = self._others(training, evaluation, user.reason, Origin.USER, asked=True)
        if not said:
            return decision
        if candidate.unsafe and any(
            suits.claims and suits.fault for suits in (candidate.training, candidate.evaluation)
        ):
            return decision.replace(
                change=Change.REDUCED,
                warning=f"{candidate.name} is used though it is not right: {said}",
            )
        only = "evaluation" if evaluation else "training"
        warning = f"{candidate.name} is used in {only} alone: {said}"
        if candidate.unsafe:
            return decision.replace(warning=warning)
        return decision.replace(warning=f"{warning}; {UNSAFE} uses it there as well")

    def _torch_kernels(
        self, reason: str, origin: Origin, request: Request, against: str
    ) -> Decision[BackendChoice | None]:
        rejected = {
            candidate.name: f"{against} does not go with it"
            if against
            else format_verdicts(candidate)
            for candidate in request.backends
        }
        return self.decision(
            None,
            "torch's own kernels",
            reason,
            origin=origin,
            rejected=rejected or {"others": f"none was examined here: {PROVED}"},
        )

    def _others(
        self,
        training: Candidate | None,
        evaluation: Candidate | None,
        reason: str,
        origin: Origin,
        *,
        asked: bool,
    ) -> Decision[BackendChoice | None]:
        used = [candidate for candidate in (training, evaluation) if candidate is not None]
        unsafe = any(candidate.unsafe for candidate in used)
        value = BackendChoice(
            training=None if training is None else training.name,
            evaluation=None if evaluation is None else evaluation.name,
            asked=asked,
            unsafe=unsafe,
        )
        says = " and ".join(
            f"{candidate.name} in {what}"
            for what, candidate in (("training", training), ("evaluation", evaluation))
            if candidate is not None
        )
        if training is not None and training == evaluation:
            says = f"{training.name} in training and evaluation"
        return self.decision(
            value,
            says,
            reason,
            origin=origin,
            environment={
                name: text for candidate in used for name, text in candidate.environment.items()
            },
        )

    def load(self, document: Any) -> BackendChoice | None:
        """Return the backends that a saved plan holds."""
        if document is None:
            return None
        training, evaluation, asked, unsafe = fields(document, *BackendChoice.record_fields)
        for name in (training, evaluation):
            if name is not None and not (isinstance(name, str) and 0 < len(name) <= 100):
                raise ValueError(name)
        if type(asked) is not bool or type(unsafe) is not bool:
            raise ValueError(document)
        return BackendChoice(training=training, evaluation=evaluation, asked=asked, unsafe=unsafe)

    def apply(self, torch: ModuleType, value: BackendChoice | None) -> Applied | None:
        """Intercept the forward of models, if the plan has a backend."""
        if value is None:
            return None
        from cputrain.runtime.backend import BackendModels, MissingBackend

        try:
            return BackendModels(
                torch,
                training=value.training,
                evaluation=value.evaluation,
                is_named=value.asked,
                unsafe=value.unsafe,
            )
        except KeyError as error:
            return MissingBackend(str(error).strip("'"))


def _against(request: Request) -> str:
    """Return the user's setting that excludes every backend; "" if there is none."""
    for name, values in (("compile", ("off",)), ("replicas", ("1",)), ("precision", ("float32",))):
        user = request.settings.get(name)
        if user is not None and user.value not in values and (
            user.value != "auto" or name == "replicas"
        ):  # fmt: skip
            return f"{user.where} {user.value}"
    return ""


def _fastest(candidates: Iterable[Candidate], what: str) -> Candidate | None:
    ranked = [
        (suits.gain, -number, candidate)
        for number, candidate in enumerate(candidates)
        if (suits := getattr(candidate, what)).gain is not None and not suits.fault
    ]
    return max(ranked)[2] if ranked else None


def format_verdicts(candidate: Candidate) -> str:
    """Format the verdicts on a candidate."""
    parts = [
        f"{what}: {suits.fault or suits.seen}"
        for what, suits in (("training", candidate.training), ("evaluation", candidate.evaluation))
    ]
    return "; ".join(parts)


def decided(value: BackendChoice | None) -> tuple[Candidate, ...]:
    """Return candidates from which the planner decides the same again, for one rank's share."""
    if value is None:
        return ()
    names = {name for name in (value.training, value.evaluation) if name}
    good, unused = Suits(gain=1.0, seen="proved"), Suits(claims=False, fault="it is not used there")
    return tuple(
        Candidate(
            name=name,
            training=good if value.training == name else unused,
            evaluation=good if value.evaluation == name else unused,
            unsafe=value.unsafe,
        )
        for name in sorted(names)
    )


SETTING = BackendSetting()
