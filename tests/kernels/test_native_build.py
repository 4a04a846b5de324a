"""Compiling the native operators: only what changed is compiled, one process at a time, and errors say what the compiler said."""

import ctypes
import shutil
import threading

import pytest

from watersmeet.kernels.native import build

compiler = shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(compiler is None, reason="no C++ compiler here")

ONE = b'#include "deep.h"\nextern "C" __attribute__((visibility("default"))) int one() { return NUMBER; }\n'
TWO = b'extern "C" __attribute__((visibility("default"))) int two() { return 2; }\n'


@pytest.fixture
def make(tmp_path, monkeypatch):
    """make(sources, name) -> (library, what was compiled)"""
    log, wrapper = tmp_path / "log", tmp_path / "c++"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {compiler} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(build, "SOURCES", ("one.cpp", "two.cpp"))
    monkeypatch.setattr(build, "VARIANTS", ((),))
    cache = tmp_path / "cache"
    cache.mkdir()

    def run(sources, name):
        log.write_text("")
        build._compile(str(wrapper), sources, cache / name)
        words = [line.split() for line in log.read_text().splitlines()]
        return ctypes.CDLL(str(cache / name)), sorted(line[line.index("-c") + 1] for line in words if "-c" in line)

    return run


def test_only_what_reaches_a_change_is_compiled_again(make):
    first = {"one.cpp": ONE, "two.cpp": TWO, "deep.h": b'#include "deeper.h"\n', "deeper.h": b"#define NUMBER 1\n"}
    library, compiled = make(first, "a.so")
    assert compiled == ["one.cpp", "two.cpp"] and (library.one(), library.two()) == (1, 2)
    library, compiled = make({**first, "deeper.h": b"#define NUMBER 7\n"}, "b.so")
    assert compiled == ["one.cpp"] and (library.one(), library.two()) == (7, 2)
    library, compiled = make(first, "c.so")
    assert compiled == [] and library.one() == 1


def test_a_source_that_does_not_compile_leaves_no_library(make, tmp_path):
    with pytest.raises(RuntimeError, match="error"):
        make({"one.cpp": b"int one( {\n", "two.cpp": TWO}, "a.so")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_who_comes_second_waits(tmp_path):
    pytest.importorskip("fcntl")
    order, inside = [], threading.Event()

    def second():
        inside.wait()
        with build._alone(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with build._alone(tmp_path / "lock"):
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
