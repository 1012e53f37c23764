"""Diagnoses in files: read, compared, shown, and rejected if invalid."""

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
def saved(tmp_path):
    """Return the file of a diagnosis."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(diagnosis(MACHINE).as_json()))
    return path


def test_a_diagnosis_survives_writing_and_reading(saved):
    assert read_diagnosis(str(saved)) == diagnosis(MACHINE)


def edit(saved, change):
    document = json.loads(saved.read_text())
    change(document)
    saved.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda doc: doc.update(kind="cputrain plan"), "found another document"),
        (lambda doc: doc.update(schema_version=99), "must have schema_version 1; found 99"),
        (lambda doc: doc.pop("seen"), "the document has no seen"),
        (lambda doc: doc["seen"].pop("wait"), "seen has no wait"),
        (lambda doc: doc["seen"].update(wait="long"), "seen.wait is 'long'"),
        (lambda doc: doc["seen"].update(wait=float("nan")), "seen.wait is nan"),
        (lambda doc: doc["seen"].update(step=0), "a step of 0.0 s"),
        (lambda doc: doc["seen"]["operators"][1].update(calls=None), "seen.operators[1].calls is"),
        (lambda doc: doc["seen"]["operators"][0].update(shapes=[[1, "x"]]), "shapes[0][1] is 'x'"),
        (lambda doc: doc["seen"].update(line=[[9, 0.0, 1.0]]), "line has an index that is not in"),
        (lambda doc: doc["seen"].update(line=[[0, 0.0]]), "seen.line[0] is [0, 0.0]"),
        (lambda doc: doc["findings"][0].update(sure="very"), "findings[0].sure is 'very'"),
        (lambda doc: doc["findings"][0].update(settings={"a": 1}), "findings[0].settings.a is 1"),
        (lambda doc: doc["roof"].update(flops_per_s={}), "{} as the rates of"),
        (lambda doc: doc["roof"]["bandwidth_bytes_per_s"]["l2"].update({"1": 0}), "rates of l2"),
        (lambda doc: doc.update(box=[]), "box is []"),
    ],
)  # fmt: skip
def test_an_invalid_document_is_rejected_with_the_fault(saved, change, says):
    edit(saved, change)
    with pytest.raises(UsageError) as caught:
        read_diagnosis(str(saved))
    assert says in str(caught.value)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\x00\xff"])
def test_a_file_that_is_not_json_is_rejected(saved, text):
    saved.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"run\.json must be"):
        read_diagnosis(str(saved))


def test_two_runs_are_compared():
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


def test_the_command_shows_one_run_and_compares_two(saved, capsys, tmp_path):
    code, out, err = report(capsys, saved)
    assert (code, err) == (0, "")
    for part in ("train.py", "what train.py has", "Tried", "1.80×"):
        assert part in out
    other = tmp_path / "other.json"
    other.write_text(json.dumps(diagnosis(MACHINE, name="other.py").as_json()))
    code, out, err = report(capsys, saved, other)
    assert (code, err) == (0, "")
    for part in ("script: train.py, then other.py", "1.00 times", "convolution_backward"):
        assert part in out
    code, out, err = report(capsys, "--json", saved, other)
    assert json.loads(out)["speedup"] == 1


def test_a_page_is_not_overwritten_without_force(saved, capsys, tmp_path):
    page = tmp_path / "page.html"
    code, out, err = report(capsys, "--html", page, saved)
    assert (code, out) == (0, "")
    assert str(page) in err
    written = page.read_bytes()
    page.write_text("the user's")
    code, out, err = report(capsys, "--html", page, saved)
    assert code == 2
    assert "would overwrite a file" in err
    assert page.read_text() == "the user's"
    code, _, _ = report(capsys, "--html", page, "--force", saved)
    assert code == 0
    assert page.read_bytes() == written


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "must name one or two files"),
        (("a", "b", "c"), "must name one or two files"),
        (("nowhere.json",), "No such file or directory"),
        (("--html", "p.html", "a", "b"), "--html shows a single diagnosis"),
        (("--json", "a"), "--json compares two diagnoses"),
        (("--html", "nowhere/p.html", "a"), "the folder nowhere does not exist"),
        (("--html", ".", "a"), "it is a folder"),
    ],
)
def test_invalid_arguments_of_report_are_errors(words, says, capsys):
    code, out, err = report(capsys, *words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_an_existing_page_is_an_error_before_the_script_runs(tmp_path):
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


def test_a_document_without_marked_roofs_has_no_impossible_figure(saved, capsys, tmp_path):
    """An earlier version measured the roof of a busy machine, and did not mark it as rough."""

    def downgrade(document):
        for name in ("rough", "measurements", "streaming_bytes_per_s", "cache_bytes"):
            document["roof"].pop(name)
        document.pop("rough")
        document["seen"].pop("others_traced")
        document["roof"]["flops_per_s"]["float32"] = {"1": 6e10, "4": 4e10}
        document["seen"]["operators"][2]["flops"] = 9e9  # 225 of 60 GFLOP/s
        document["seen"]["wait"] = 0.2  # of a step of 0.1
        for finding in document["findings"]:
            finding.pop("changes")
        document["findings"][0]["evidence"] = [
            "they reach 225 GFLOP/s of 60", "that is 90 GB/s, where this memory has 40",
            "they reach 45.5 GFLOP/s of 60", "batches take 40% of a step",
        ]  # fmt: skip
        document["findings"][1]["title"] = "150% of a step goes to and from memory"

    edit(saved, downgrade)
    found = read_diagnosis(str(saved))
    assert found.roof.flops("float32", 4) == pytest.approx(2.25e11)
    assert found.rough
    assert [one.title for one in found.findings] == ["what train.py has"]
    page = tmp_path / "page.html"
    (_, text, _), (_, both, _) = report(capsys, saved), report(capsys, saved, saved)
    report(capsys, "--html", page, saved)
    shown = (text, both, text_of_page(page.read_text()))
    assert impossible_figures(found.as_json(), *shown) == []
    for each in shown:
        assert "Figures are rough" in " ".join(each.split())
    assert "45.5 GFLOP/s of 60" in text
