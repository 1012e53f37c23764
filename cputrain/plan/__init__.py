"""Decisions: from a machine and a request to a frozen plan. Imports no torch, changes nothing."""

from cputrain.plan.decision import Change, Decision, Knob, Origin, Request, Setting
from cputrain.plan.plan import Plan, make_plan
from cputrain.plan.replay import read_plan

__all__ = [
    "Change",
    "Decision",
    "Knob",
    "Origin",
    "Plan",
    "Request",
    "Setting",
    "make_plan",
    "read_plan",
]
