"""Plans: the decisions on all settings for a machine and a request. Imports no torch."""

from cputrain.plan.plan import Plan, make_plan
from cputrain.plan.replay import read_plan
from cputrain.settings.core.decision import Change, Decision, Origin, Request, UserValue

__all__ = [
    "Change",
    "Decision",
    "Origin",
    "Plan",
    "Request",
    "UserValue",
    "make_plan",
    "read_plan",
]
