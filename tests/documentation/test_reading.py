"""The manual is easy to read, and has a page for what people look for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"

PAGES = sorted(path for path in DOCS.rglob("*.md") if "benchmarks" not in path.parts)

SOUGHT = (
    "oversubscription", "throughput", "NUMA", "hyper-threading", "AMX", "bfloat16", "/dev/shm",
    "DataLoader worker", "unable to open shared memory object", "cgroup", "quota", "Slurm",
    "jemalloc", "OMP_NUM_THREADS", "torch.compile", "OpenCL", "out of memory", "reproducible",
)  # fmt: skip
"""Words that people search for."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without code, tables and headings."""
    text = re.sub(r"(?ms)\A---\n.*?^---\n", "", text)
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if re.match(r"(?: {4}(?![-*])|\||#|!|<|===|:::|\?\?\?)", block):
            continue
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        plain = re.sub(r"`[^`]*`", "code", plain)
        yield from re.split(r"(?<=[.!?])\**\s+", plain)


def num_words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def lengths(path: Path) -> dict[str, int]:
    """The numbers of words of a page's sentences."""
    counted = {sentence: num_words(sentence) for sentence in sentences(path.read_text())}
    return {sentence: length for sentence, length in counted.items() if length}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_no_sentence_is_long(path: Path) -> None:
    assert {sentence for sentence, length in lengths(path).items() if length > 35} == set()


def test_sentences_have_fifteen_words_or_fewer_on_average() -> None:
    counted = [length for path in PAGES for length in lengths(path).values()]
    assert sum(counted) / len(counted) <= 15


@pytest.mark.parametrize("word", SOUGHT)
def test_what_people_look_for_is_on_a_page(word: str) -> None:
    assert any(word.lower() in path.read_text().lower() for path in PAGES)
