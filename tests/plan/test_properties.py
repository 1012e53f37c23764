"""What holds for the plan of any machine and any request."""

from __future__ import annotations

import copy
import json
import os

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cputrain.machine import Machine, Rank, cores_within
from cputrain.plan import Change, Origin, Request, UserValue, make_plan, read_plan
from cputrain.report.plans import why_not
from cputrain.settings.core.registry import SETTINGS
from tests.plan.machines import REQUESTS, machines

settings.register_profile(
    "plans", max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
PLANS = settings.get_profile("plans")


@PLANS
@given(machine=machines(), request=REQUESTS)
def test_threads_fit_the_budget(machine: Machine, request: Request) -> None:
    decision = make_plan(machine, request).decision("threads")
    assert decision.value >= 1
    if decision.origin is Origin.RULE:
        cores = cores_within(machine.topology, machine.budget.cpus)
        assert decision.value <= len(cores) <= len(machine.budget.cpus)
        if machine.limits.quota_cpus is not None:
            assert decision.value <= max(1, int(machine.limits.quota_cpus))
        if machine.limits.slurm_cpus is not None:
            assert decision.value <= machine.limits.slurm_cpus


@PLANS
@given(machine=machines(), request=REQUESTS)
def test_a_plan_survives_the_way_through_a_file(machine: Machine, request: Request) -> None:
    plan = make_plan(machine, request)
    assert read_plan(json.dumps(plan.document()), "there") == plan
    assert hash(plan.machine) == hash(machine.fingerprint())
    carried = json.loads(plan.carried())
    assert carried["environment"] == plan.environment
    assert "\n" not in plan.carried()


@PLANS
@given(machine=machines(), request=REQUESTS)
def test_every_decision_speaks_for_itself(machine: Machine, request: Request) -> None:
    plan = make_plan(machine, request)
    assert [decision.policy for decision in plan.decisions] == list(SETTINGS)
    for decision in plan.decisions:
        assert decision.says
        assert decision.reason
        # what changes results is only done if somebody has said so
        assert decision.change in (Change.NONE, Change.EXACT) or decision.origin is Origin.USER
        assert set(decision.environment) <= SETTINGS[decision.policy].variables
        assert not decision.environment or decision.change is not Change.NONE
        for name, reason in decision.rejected.items():
            assert reason.strip()
            assert reason in why_not(plan, name)
            assert reason in why_not(plan, f"{decision.policy}={name}")
        assert decision.reason in why_not(plan, decision.policy)
        assert decision.reason in why_not(plan, decision.policy.replace("_", "-"))


@PLANS
@given(machine=machines(), request=REQUESTS)
def test_policies_are_pure(machine: Machine, request: Request) -> None:
    before = dict(os.environ), copy.deepcopy(request.__dict__), repr(machine)
    first = make_plan(machine, request)
    assert make_plan(machine, request) == first
    assert (dict(os.environ), request.__dict__, repr(machine)) == before
    for setting in reversed(SETTINGS.values()):
        assert setting.decide(machine, request) == first.decision(setting.name)


@PLANS
@given(machine=machines(), count=st.integers(2, 30), binds=st.booleans())
def test_ranks_share_the_budget_without_overlap(machine: Machine, count: int, binds: bool) -> None:
    plans = [
        make_plan(machine, Request(rank=Rank(launcher="it", index=index, count=count, binds=binds)))
        for index in range(count)
    ]
    masks = [plan.value("placement") for plan in plans]
    if binds and masks[0] is None:
        return
    budget = set(machine.budget.cpus)
    for plan, mask in zip(plans, masks, strict=True):
        assert mask
        assert set(mask) <= budget
        assert 1 <= plan.value("threads") <= len(mask)
    frugal = {c for kind in machine.kinds if str(kind.kind) == "efficiency" for c in kind.cpus}
    cores = cores_within(machine.topology, machine.budget.cpus)
    fast = [core for core in cores if core[0] not in frugal] or cores
    if len(fast) >= count:
        taken = [cpu for mask in masks for cpu in mask]
        assert len(taken) == len(set(taken))
        # a core's threads stay together
        for core in fast:
            assert sum(1 for mask in masks if set(core) & set(mask)) == 1
    if count <= machine.budget.physical_cores:
        total = sum(plan.value("threads") for plan in plans)
        assert total <= max(count, machine.budget.physical_cores)


@PLANS
@given(machine=machines(), request=REQUESTS)
def test_what_the_allocator_keeps_is_a_quarter_of_memory_at_most(
    machine: Machine, request: Request
) -> None:
    environment = make_plan(machine, request).decision("allocator").environment
    memory = machine.budget.memory_bytes
    assume(memory is not None)
    for name, value in environment.items():
        if name.startswith("MALLOC_") and name != "MALLOC_MMAP_MAX_":
            assert 0 <= int(value) <= (memory or 0) // 4


@PLANS
@given(machine=machines(), request=REQUESTS)
def test_memory_is_interleaved_over_nodes_that_compute_only(
    machine: Machine, request: Request
) -> None:
    policy = make_plan(machine, request).value("memory_policy")
    if policy is not None:
        by_id = {node.id: set(node.cpus) for node in machine.nodes}
        assert len(policy.interleave) > 1
        for node in policy.interleave:
            assert by_id[node] & set(machine.budget.cpus)


@PLANS
@given(machine=machines(), data=st.data())
def test_the_users_numbers_are_carried_out_and_bound_each_other(
    machine: Machine, data: st.DataObject
) -> None:
    cpus = machine.budget.cpus
    wanted = sorted(data.draw(st.sets(st.sampled_from(cpus), min_size=1)))
    listed = ",".join(map(str, wanted))
    asked = {"placement": UserValue(value=listed, where="--placement")}
    plan = make_plan(machine, Request(settings=asked))
    assert plan.value("placement") == tuple(wanted)
    assert 1 <= plan.value("threads") <= len(wanted)
    count = data.draw(st.integers(1, len(cpus)))
    asked["threads"] = UserValue(value=str(count), where="--threads")
    plan = make_plan(machine, Request(settings=asked, environment={"MKL_NUM_THREADS": "1"}))
    assert plan.value("threads") == count


@PLANS
@given(machine=machines(), data=st.data())
def test_cores_kept_for_loaders_are_taken_from_compute(
    machine: Machine, data: st.DataObject
) -> None:
    cores = len(cores_within(machine.topology, machine.budget.cpus))
    frugal = {c for kind in machine.kinds if str(kind.kind) == "efficiency" for c in kind.cpus}
    found = cores_within(machine.topology, machine.budget.cpus)
    fast = sum(core[0] not in frugal for core in found) or cores
    assume(fast > 1)
    count = data.draw(st.integers(1, fast - 1))
    asked = {"loader_cores": UserValue(value=str(count), where="--loader-cores")}
    value = make_plan(machine, Request(settings=asked)).value("loader_cores")
    assert set(value.cpus) <= set(machine.budget.cpus)
    assert 1 <= value.compute_threads <= max(1, machine.budget.physical_cores - count)
