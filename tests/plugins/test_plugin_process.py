"""Plugins of really installed packages, seen by a fresh interpreter."""

import json
import os
import subprocess
import sys

import pytest

LIST = """
import json, sys, time
started = time.perf_counter()
from watersmeet.plugins import get_registry
found = get_registry()
seconds = time.perf_counter() - started
heavy = sorted({"torch", "numpy", "PIL", "sentencepiece", "onnxruntime", "cv2"} & set(sys.modules))
print(json.dumps({
    "states": {record.plugin: [record.state, record.distribution, record.version, record.error] for record in found.records()},
    "modalities": [spec.name for spec in found.modalities()],
    "heavy": heavy,
    "seconds": seconds,
}))
"""


def install(folder, name, module, body, version="1.0"):
    """What an installer leaves behind: a module and a .dist-info folder."""
    (folder / f"{module}.py").write_text(body)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[watersmeet.plugins]\n{name} = {module}\n")


def listing(folder, plugins=None):
    environment = {key: value for key, value in os.environ.items() if key != "WATERSMEET_PLUGINS"}
    environment["PYTHONPATH"] = str(folder)
    if plugins is not None:
        environment["WATERSMEET_PLUGINS"] = plugins
    done = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def packages(tmp_path):
    hook = "from watersmeet.plugins import ModalitySpec, hookimpl\n"
    spec = "    return [ModalitySpec(name='echo', encoder='echo_parts:Encoder', embedder='echo_parts:Embedder')]\n"
    install(tmp_path, "echo-sensor", "echo_plugin", hook + "@hookimpl\ndef register_modalities():\n" + spec, "2.5")
    install(tmp_path, "crash-sensor", "crash_plugin", "raise RuntimeError('crashed on import')\n")
    install(tmp_path, "exit-sensor", "exit_plugin", "import sys\nsys.exit(7)\n")
    install(tmp_path, "typo-sensor", "typo_plugin", hook + "@hookimpl\ndef register_modality():\n" + spec)
    return tmp_path


def test_third_party_packages_load_beside_broken_ones(packages):
    seen = listing(packages)
    assert seen["states"]["echo-sensor"] == ["loaded", "echo-sensor", "2.5", ""]
    assert "echo" in seen["modalities"] and "text" in seen["modalities"] and "image" in seen["modalities"]
    for name, reason in [("crash", "crashed on import"), ("exit", "SystemExit: 7"), ("typo", "'register_modality'")]:
        state, distribution, _, error = seen["states"][f"{name}-sensor"]
        assert state == "failed" and distribution == f"{name}-sensor" and reason in error


def test_listing_imports_nothing_heavy_and_is_quick(packages):
    seen = listing(packages)
    assert seen["heavy"] == []
    assert seen["seconds"] < 2.0


def test_allow_list_and_off_switch(packages):
    assert listing(packages, "")["modalities"] == []
    assert listing(packages, "echo-sensor")["modalities"] == ["echo"]
    assert "echo" not in listing(packages, "-echo-sensor")["modalities"]
    only_ours = listing(packages, "watersmeet")
    assert "text" in only_ours["modalities"] and "echo" not in only_ours["modalities"]
