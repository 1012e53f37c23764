"""A saved plan is carried out as it is, or refused with the reason when it is read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cputrain.errors import PlanError
from cputrain.plan import read_plan
from tests.launch.programs import LAUNCH, complaint, launch, run, script, verb


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A plan of this machine."""
    folder = tmp_path_factory.mktemp("plan")
    found: dict[str, Any] = json.loads(verb(folder, "plan", "--json").stdout)
    return found


def changed(document: dict[str, Any], named: str, /, **fields: Any) -> str:
    other = copy.deepcopy(document)
    entry = next(entry for entry in other["decisions"] if entry["policy"] == named)
    entry.update(fields)
    return json.dumps(other)


def test_a_saved_plan_is_carried_out(tmp_path: Path) -> None:
    script(
        tmp_path, "import os; print(os.environ['CPUTRAIN_PLAN'], sorted(os.sched_getaffinity(0)))"
    )
    made = verb(tmp_path, "plan", "--json", "--placement", "0", "--flush-denormals", "off")
    script(tmp_path, made.stdout, "p.json")
    replayed = launch(tmp_path, "--plan", "p.json", "x.py")
    direct = launch(tmp_path, "--placement", "0", "--flush-denormals", "off", "x.py")
    assert replayed.returncode == 0
    assert replayed.stdout == direct.stdout
    shown = verb(tmp_path, "plan", "--json", "--plan", "p.json")
    assert shown.stdout == made.stdout
    line = complaint(launch(tmp_path, "--plan", "p.json", "--threads", "1", "x.py"))
    assert "--threads cannot be given with --plan" in line


def test_files_that_are_no_plans_are_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    script(tmp_path, "print(1)")
    whole = json.dumps(document)
    texts = [
        b"", b"{", b"\xff\xfe", b"\x00", b"[]", b"5", b'"x"', b"{}", b"null", b"NaN",
        whole[: len(whole) // 2].encode(), b"[" * 200_000, b'{"kind": "cputrain plan"}',
        b'{"a": ' + b"9" * 10_000 + b"}",
    ]  # fmt: skip
    for version in (0, 1, 3, "2", 2.0, True, None, [2]):
        texts.append(json.dumps({**document, "schema_version": version}).encode())
    for key in ("decisions", "machine", "settings"):
        texts.append(json.dumps({k: v for k, v in document.items() if k != key}).encode())
        for value in (5, None, [5], {"a": 1}, [[]]):
            texts.append(json.dumps({**document, key: value}).encode())
    for text in texts:
        with pytest.raises(PlanError) as caught:
            read_plan(text.decode("latin-1"), "--plan p.json")
        assert len(str(caught.value)) < 600
    for text in texts[:8]:
        (tmp_path / "p.json").write_bytes(text)
        assert "--plan p.json must" in complaint(launch(tmp_path, "--plan", "p.json", "x.py"))
    for path in ("none.json", ".", ""):
        assert "must be a readable file" in complaint(launch(tmp_path, "--plan", path, "x.py"))


HOSTILE = [
    *(("placement", {"value": value}) for value in (
        "x", 5, [], ["0"], [[0]], [0.0], [True], [-1], [10**30], [None], {"0": 1}, True
    )),
    *(("threads", {"value": value}) for value in (0, -1, "2", 2.0, True, None, [], 10**30)),
    *(("memory_policy", {"value": value}) for value in (
        "interleave", {"interleave": []}, {"interleave": ["x"]}, {"interleave": [10**9]}, {}, 1
    )),
    *(("loader_cores", {"value": value}) for value in (
        None, {}, {"cpus": "x", "threads": 1, "compute_threads": 1},
        {"cpus": [0], "threads": 1, "compute_threads": "many"},
    )),
    *(("start_method", {"value": value}) for value in (
        "spawn", {"script": "foo", "pools": "fork"}, {"script": [], "pools": "fork"}, {},
    )),
    *(("allocator", {"value": value}) for value in (
        {}, None, 5, {"keep_bytes": -1}, {"keep_bytes": True}, {"keep_bytes": 1, "more": 2},
    )),
    *(("flush_denormals", {"value": value}) for value in (1, "on", None)),
    *(("optimizer_states", {"value": value}) for value in (8, "4bit", None)),
    *(("interop_threads", {"value": value}) for value in (0, True, "1")),
    *(("threads", {"environment": value}) for value in (
        {"PATH": "/evil"}, {"GOMP_SPINCOUNT": "two"}, {"GOMP_SPINCOUNT": 2}, [], None, "x",
        {"LD_PRELOAD": "a\x00b"}, {"LD_PRELOAD": "\ud800"}, {"GOMP_SPINCOUNT": "\u0662"},
        {"PYTHONPATH": "x"}, {"GOMP_SPINCOUNT": "2\n"}, {"OMP_NUM_THREADS": "2"},
    )),
    *(("threads", {name: value}) for name in ("says", "reason", "origin", "change", "warning")
      for value in (5, None, [], {}, "\x1b[31m\n")),
    ("threads", {"rejected": {"a": 1}}),
    ("threads", {"rejected": []}),
    ("threads", {"policy": "sorcery"}),
    ("threads", {"policy": "placement"}),
    ("threads", {"policy": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "fields"), HOSTILE)
def test_a_hostile_value_is_refused_when_the_plan_is_read(
    document: dict[str, Any], policy: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(PlanError) as caught:
        read_plan(changed(document, policy, **fields), "--plan p.json")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_plan_that_does_not_fit_is_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    script(tmp_path, "print(1)")
    script(tmp_path, changed(document, "placement", value=[9999]), "p.json")
    assert "CPU 9999" in complaint(launch(tmp_path, "--plan", "p.json", "x.py"))
    script(tmp_path, json.dumps({**document, "machine": "another"}), "p.json")
    assert "must be made on this machine" in complaint(launch(tmp_path, "--plan", "p.json", "x.py"))
    lost = changed(document, "allocator", value="/no/x.so", environment={"LD_PRELOAD": "/no/x.so"})
    script(tmp_path, lost, "p.json")
    assert "/no/x.so" in complaint(launch(tmp_path, "--plan", "p.json", "x.py"))
    script(tmp_path, changed(document, "threads", environment={"PATH": "/evil"}), "p.json")
    assert "'PATH'" in complaint(launch(tmp_path, "--plan", "p.json", "x.py"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(field=st.sampled_from(["value", "environment", "rejected", "says", "policy"]), value=JSON)
@settings(max_examples=150, deadline=None)
@pytest.mark.long
def test_whatever_a_field_holds_it_is_read_or_refused(
    document: dict[str, Any], field: str, value: Any
) -> None:
    for policy in [entry["policy"] for entry in document["decisions"]]:
        try:
            plan = read_plan(changed(document, policy, **{field: value}), "p.json")
        except PlanError:
            continue
        assert read_plan(json.dumps(plan.document()), "p.json") == plan


def test_a_plan_may_come_through_a_pipe(tmp_path: Path, document: dict[str, Any]) -> None:
    script(tmp_path, "print(1)")
    script(tmp_path, json.dumps(document), "p.json")
    joined = f"cat p.json | {' '.join(LAUNCH)} --plan /dev/stdin x.py"
    done = run(("sh", "-c", joined), tmp_path)
    assert done.stdout == "1\n", done.stderr
