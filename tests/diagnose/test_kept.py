"""Diagnoses that were kept: read again, compared, and refused where they are none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cputrain.bench.diagnoses.impossible import impossible_figures, text_of_page
from cputrain.diagnose import compare, read_diagnosis
from cputrain.errors import UsageError
from cputrain.launch.cli import main
from cputrain.machine import read_machine
from tests.diagnose.samples import diagnosis

MACHINE = read_machine(detail=False)


@pytest.fixture
def kept(tmp_path):
    """The file of one."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(diagnosis(MACHINE).as_json()))
    return path


def test_what_is_read_is_what_was_written(kept):
    assert read_diagnosis(str(kept)) == diagnosis(MACHINE)


def changed(kept, change):
    document = json.loads(kept.read_text())
    change(document)
    kept.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda it: it.update(kind="cputrain plan"), "found another document"),
        (lambda it: it.update(schema_version=99), "must have schema_version 1; found 99"),
        (lambda it: it.pop("seen"), "the document has no seen"),
        (lambda it: it["seen"].pop("wait"), "seen has no wait"),
        (lambda it: it["seen"].update(wait="long"), "seen.wait is 'long'"),
        (lambda it: it["seen"].update(wait=float("nan")), "seen.wait is nan"),
        (lambda it: it["seen"].update(step=0), "a step of 0.0 s"),
        (lambda it: it["seen"]["operators"][1].update(calls=None), "seen.operators[1].calls is"),
        (lambda it: it["seen"]["operators"][0].update(shapes=[[1, "x"]]), "shapes[0][1] is 'x'"),
        (lambda it: it["seen"].update(line=[[9, 0.0, 1.0]]), "a line with operators that are not"),
        (lambda it: it["seen"].update(line=[[0, 0.0]]), "seen.line[0] is [0, 0.0]"),
        (lambda it: it["findings"][0].update(sure="very"), "findings[0].sure is 'very'"),
        (lambda it: it["findings"][0].update(settings={"a": 1}), "findings[0].settings.a is 1"),
        (lambda it: it["roof"].update(flops_per_s={}), "{} as the rates of"),
        (lambda it: it["roof"]["bandwidth_bytes_per_s"]["l2"].update({"1": 0}), "rates of l2"),
        (lambda it: it.update(box=[]), "box is []"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_by_name(kept, change, says):
    changed(kept, change)
    with pytest.raises(UsageError) as told:
        read_diagnosis(str(kept))
    assert says in str(told.value)
    assert str(kept) in str(told.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\x00\xff"])
def test_a_text_that_is_no_document_is_refused(kept, text):
    kept.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"run\.json must be"):
        read_diagnosis(str(kept))


def test_two_runs_are_held_against_each_other():
    before = diagnosis(MACHINE)
    faster = [one.replace(seconds=one.seconds / 2) if one.name == "mul" else one
              for one in before.seen.operators]  # fmt: skip
    seen = before.seen.replace(step=0.08, wait=0.0, operators=tuple(faster), threads=2)
    after = before.replace(seen=seen, findings=before.findings[1:])
    found = compare(before, after)
    assert found.speedup == pytest.approx(1.25)
    assert found.sure
    parts = {one.name: one.saved for one in found.parts}
    assert [parts["a step"], parts["loader"]] == pytest.approx([0.02, 0.02])
    assert found.operators[0].name == "mul"
    assert found.operators[0].saved == pytest.approx(0.005)
    assert found.gone == found.new == ()  # another finding has the same remedy
    assert found.differs == ("threads: 4, then 2",)
    same = compare(before, before.replace(seen=before.seen.replace(step=0.099)))
    assert not same.sure


def report(capsys, *words):
    code = main(["report", *map(str, words)])
    return code, *capsys.readouterr()


def test_the_command_shows_one_and_compares_two(kept, capsys, tmp_path):
    code, out, err = report(capsys, kept)
    assert (code, err) == (0, "")
    for part in ("train.py", "what train.py has", "Tried", "1.80×"):
        assert part in out
    other = tmp_path / "other.json"
    other.write_text(json.dumps(diagnosis(MACHINE, name="other.py").as_json()))
    code, out, err = report(capsys, kept, other)
    assert (code, err) == (0, "")
    for part in ("script: train.py, then other.py", "1.00 times", "convolution_backward"):
        assert part in out
    code, out, err = report(capsys, "--json", kept, other)
    assert json.loads(out)["speedup"] == 1


def test_a_page_is_written_once(kept, capsys, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = report(capsys, "--html", page, kept)
    assert (code, out) == (0, "")
    assert str(page) in err
    written = page.read_bytes()
    page.write_text("the user's")
    code, out, err = report(capsys, "--html", page, kept)
    assert code == 2
    assert "would overwrite a file" in err
    assert page.read_text() == "the user's"
    code, _, _ = report(capsys, "--html", page, "--force", kept)
    assert code == 0
    assert page.read_bytes() == written


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "takes one or two files"),
        (("a", "b", "c"), "takes one or two files"),
        (("nowhere.json",), "No such file or directory"),
        (("--html", "p.html", "a", "b"), "--html shows a single diagnosis"),
        (("--json", "a"), "--json compares two diagnoses"),
        (("--html", "nowhere/p.html", "a"), "there is no folder nowhere"),
        (("--html", ".", "a"), "it is a folder"),
    ],
)
def test_what_cannot_be_reported_is_told(words, says, capsys):
    code, out, err = report(capsys, *words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_file_in_the_way_is_told_before_the_script_runs(tmp_path):
    (tmp_path / "page.html").write_text("the user's")
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    words = ("diagnose", "--html", "page.html", "train.py")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--html page.html would overwrite a file" in done.stderr
    assert (tmp_path / "page.html").read_text() == "the user's"
    assert not (tmp_path / "ran").exists()


def test_what_was_kept_before_roofs_were_marked_has_no_impossible_figure(kept, capsys, tmp_path):
    """A document of an earlier version, of a machine that was busy when its best was measured."""

    def of_before(it):
        for name in ("rough", "measurements", "streaming_bytes_per_s", "cache_bytes"):
            it["roof"].pop(name)
        it.pop("rough")
        it["seen"].pop("others_traced")
        it["roof"]["flops_per_s"]["float32"] = {"1": 6e10, "4": 4e10}
        it["seen"]["operators"][2]["flops"] = 9e9  # 225 of 60 GFLOP/s
        it["seen"]["wait"] = 0.2  # of a step of 0.1
        for finding in it["findings"]:
            finding.pop("changes")
        it["findings"][0]["evidence"] = [
            "they reach 225 GFLOP/s of 60", "that is 90 GB/s, where this memory has 40",
            "they reach 45.5 GFLOP/s of 60", "batches take 40% of a step",
        ]  # fmt: skip
        it["findings"][1]["title"] = "150% of a step goes to and from memory"

    changed(kept, of_before)
    found = read_diagnosis(str(kept))
    assert found.roof.flops("float32", 4) == pytest.approx(2.25e11)
    assert found.rough
    assert [one.title for one in found.findings] == ["what train.py has"]
    page = tmp_path / "page.html"
    (_, text, _), (_, both, _) = report(capsys, kept), report(capsys, kept, kept)
    report(capsys, "--html", page, kept)
    shown = (text, both, text_of_page(page.read_text()))
    assert impossible_figures(found.as_json(), *shown) == []
    for each in shown:
        assert "Figures are rough" in " ".join(each.split())
    assert "45.5 GFLOP/s of 60" in text
