"""The pages that the nano model is fine-tuned on for docs/finetune-nano.md: the same every time, and none on both sides."""

import importlib.util
import sys

import pytest

pytest.importorskip("faker")
pytest.importorskip("wordfreq")


@pytest.fixture(scope="module")
def pages(root):
    spec = importlib.util.spec_from_file_location("style_pages", root / "benchmarks" / "style_pages.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["style_pages"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["style_pages"]


def test_equal_seeds_give_equal_bytes_and_others_other_pages(pages, tmp_path):
    for name in ("one", "two"):
        pages.write_pages(tmp_path / name, learn=20, held=9)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.html"))
    assert len(files) == 29
    texts = [(tmp_path / "one" / file).read_bytes() for file in files]
    assert texts == [(tmp_path / "two" / file).read_bytes() for file in files]
    assert len(set(texts)) == len(texts)


def test_a_third_of_the_held_out_pages_has_templates_that_are_not_learnt(pages, tmp_path):
    pages.write_pages(tmp_path, learn=30, held=30)

    def templates(folder):
        return [path.stem.partition("-")[2] for path in sorted((tmp_path / folder).iterdir())]

    learnt, held = set(templates("learn")), templates("held")
    assert len(learnt) == 10 and sum(name not in learnt for name in held) == 10
    assert set(held) - learnt == {"journal", "register"} and learnt <= set(held)
