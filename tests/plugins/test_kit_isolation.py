"""What a test of a plugin stands in: plugins that leak nowhere, workers that see them, a model without weights."""

import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from watersmeet.core.errors import PluginError, UsageError
from watersmeet.plugins import get_registry, registered
from watersmeet.plugins.registered import register_plugin, unregister_plugin
from watersmeet.testing import ScriptedModel, isolated_plugins, tmp_plugin

pytest_plugins = ["watersmeet.testing.fixtures"]

PLUGIN = """
    from watersmeet.plugins import ModalitySpec, hookimpl

    @hookimpl
    def register_modalities():
        return [ModalitySpec(name="thermometer", encoder="fractions:Fraction", embedder="decimal:Decimal")]

    class Kind:
        @hookimpl
        def register_modalities(self):
            return []

    thing = Kind()
"""


def install(folder, name):
    """What an installer leaves behind."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[watersmeet.plugins]\n{name} = {name}_module\n")


def test_the_manager_sees_ours_and_what_is_added_and_nothing_installed(plugin_manager, tmp_path, monkeypatch):
    install(tmp_path, "leaking")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {record.plugin for record in plugin_manager.registry.records()}
    assert "text" in names and "leaking" not in names
    with pytest.raises(PluginError, match="a test looks at no installed plugin"):
        plugin_manager.discover()
    written = plugin_manager.write(PLUGIN, name="thermometer")
    assert plugin_manager.registry.modality_owner("thermometer").target == written.module
    plugin_manager.remove("thermometer")
    with pytest.raises(PluginError, match="no modality 'thermometer'"):
        plugin_manager.registry.modality("thermometer")
    with pytest.raises(PluginError, match="no plugin 'thermometer' is registered; there are: none"):
        plugin_manager.remove("thermometer")


def test_nothing_is_left_behind(tmp_path):
    before = (dict(os.environ), list(sys.path), set(sys.modules))
    with tmp_plugin(PLUGIN, name="thermometer") as written:
        assert get_registry().modality("thermometer") and written.module in sys.modules
    assert (dict(os.environ), list(sys.path)) == before[:2] and written.module not in sys.modules
    assert not written.path.exists()
    with pytest.raises(PluginError, match="no modality 'thermometer'"):
        get_registry().modality("thermometer")


def test_the_fixture_writes_a_plugin(tmp_plugin):
    tmp_plugin(PLUGIN, name="anything")
    assert get_registry().modality_owner("thermometer").plugin == "anything"


def test_spawned_workers_see_registered_plugins(plugin_manager):
    from watersmeet.testing.worker import owner_of

    plugin_manager.write(PLUGIN, name="thermometer")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(owner_of, "thermometer").result(timeout=600) == ("thermometer", registered.DISTRIBUTION)


def test_workers_of_a_data_loader_see_them_however_they_are_started(plugin_manager):
    torch = pytest.importorskip("torch")
    from watersmeet.testing.worker import OwnersOf

    plugin_manager.write(PLUGIN, name="thermometer")
    for method in ("spawn", "fork"):
        loader = torch.utils.data.DataLoader(
            OwnersOf(["thermometer", "text"]), batch_size=None, num_workers=1, multiprocessing_context=method
        )
        assert [tuple(one) for one in loader] == [("thermometer", registered.DISTRIBUTION), ("text", "watersmeet")]


@pytest.mark.slow
def test_a_process_that_accelerate_launches_sees_them(plugin_manager, tmp_path):
    plugin_manager.write(PLUGIN, name="thermometer")
    script = tmp_path / "script.py"
    script.write_text("from watersmeet.testing.worker import owner_of\nprint(owner_of('thermometer'))\n")
    command = [sys.executable, "-P", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = subprocess.run([*command, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "('thermometer', '(registered)')"


def test_a_started_program_sees_them(plugin_manager):
    plugin_manager.write(PLUGIN, name="thermometer")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "watersmeet", "plugins", "--json"], capture_output=True, text=True, check=True
    )
    listed = {one["plugin"]: one for one in json.loads(done.stdout)}
    assert listed["thermometer"]["state"] == "loaded" and listed["thermometer"]["distribution"] == "(registered)"


def test_modules_classes_and_objects_can_be_registered(plugin_manager):
    import importlib

    written = plugin_manager.write(PLUGIN, name="first")
    module = importlib.import_module(written.module)
    for plugin, target in [
        (module, written.module),
        (module.Kind, f"{written.module}:Kind"),
        (module.thing, f"{written.module}:thing"),
        (f"{written.module}:Kind", f"{written.module}:Kind"),
    ]:
        register_plugin(plugin, name="second")
        record = [record for record in get_registry().records() if record.plugin == "second"]
        assert [(one.target, one.state) for one in record] == [(target, "loaded")]
    unregister_plugin("second")


def refused():
    class Local:
        pass

    script = type("InScript", (), {"__module__": "__main__"})
    changed = type("ModuleType", (), {"__module__": "json", "__qualname__": "JSONDecoder"})
    return {
        "a class inside a function": (Local, "workers could not import .*Local"),
        "something of the script": (script, "part of the running script"),
        "an object without a name": (Local(), "has no name at the top of module"),
        "a class that took another's name": (changed, "json:JSONDecoder is another object"),
        "a bad target": ("package.module:", "is not of the form"),
    }


@pytest.mark.parametrize("what", refused())
def test_what_workers_could_not_find_is_refused(what, plugin_manager):
    plugin, words = refused()[what]
    with pytest.raises(PluginError, match=words):
        register_plugin(plugin, name="thing")
    assert registered.registered() == {}


def test_a_plugin_without_a_name_is_refused(plugin_manager):
    with pytest.raises(PluginError, match="the name is empty"):
        register_plugin("json", name="")


def test_what_a_worker_cannot_import_is_said_when_it_is_asked_for(plugin_manager):
    register_plugin("module_that_only_the_parent_has", name="lost")
    with pytest.raises(PluginError, match=r"plugin lost \(\(registered\)\) failed to load: ModuleNotFoundError"):
        get_registry().modality("lost")
    assert get_registry().modality("text")


def test_a_strangers_fault_does_not_keep_a_model_from_being_read(plugin_manager):
    from watersmeet.pipelines.models.modalities import published_modalities

    source = """
        from watersmeet import ModalitySpec, hookimpl

        @hookimpl
        def register_modalities():
            return [ModalitySpec(name=name, encoder="a:b", embedder=__name__ + ":" + name.title()) for name in ("bad", "good")]

        class Bad:
            @staticmethod
            def published_settings(shapes, config, files):
                raise KeyError("tower")

        class Good(Bad):
            @staticmethod
            def published_settings(shapes, config, files):
                return {"width": shapes["tower.weight"][0]}
    """
    plugin_manager.write(source, name="stranger")
    assert published_modalities({"tower.weight": (7, 2)}, {}, {}) == {"good": {"width": 7}}


# ---- the scripted model -----------------------------------------------------------------------------------------


def test_a_scripted_model_answers_from_its_function_and_remembers():
    model = ScriptedModel(reply=lambda prompt, picture: f"{prompt}? {picture}")
    assert model.ask("what", "P", max_tokens=9) == "what? P"
    blind = ScriptedModel(reply=lambda prompt, picture: str(picture), sees=False)
    assert blind.ask("what", "P") == "None"
    assert [(call.prompt, call.picture, call.max_tokens) for call in model.calls] == [("what", "P", 9)]
    assert model.ask_parts(["one", "two"], max_tokens=9) == "one\ntwo? None"
    assert model.ask_parts(["one", b"P", "two", b"Q"], max_tokens=9) == "one\ntwo? b'P'" and len(model.calls) == 3
    with pytest.raises(UsageError, match="is a int, expected a text"):
        ScriptedModel(reply=lambda prompt, picture: 3).ask("x")


def test_generate_reads_the_same_answers():
    from watersmeet import Stream, generate

    model = ScriptedModel(reply=lambda prompt, picture: {"one": "Grüße, 世界", "two": ""}[prompt])
    text = model.encoders["text"]
    decoder = get_registry().decoder("text", text.settings, files=text.files)
    prompts = [Stream(spans=tuple(text.encode(word))) for word in ("one", "two")]
    for temperature in (0.0, 1.0):
        found = generate(
            model.model, prompts, max_new_tokens=60, eos_id=model.stop_ids, temperature=temperature, seed=3
        )
        assert [decoder.decode(one.ids) for one in found] == ["Grüße, 世界", ""]
        assert all(one.stopped for one in found)
    [short] = generate(model.model, prompts[:1], max_new_tokens=3, eos_id=model.stop_ids)
    assert len(short.ids) == 3 and not short.stopped
    assert [call.prompt for call in model.calls] == ["one", "two", "one", "two", "one"]


def test_importing_the_kit_needs_no_pytest_and_no_torch():
    code = (
        "import sys\nimport watersmeet.testing\nfrom watersmeet.testing import isolated_plugins, ScriptedModel, examine\n"
        "from watersmeet.testing import PipelineTests\n"
        "print(sorted({'pytest', '_pytest'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    code = "import sys\nimport watersmeet.testing\nprint(sorted({'pytest', 'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_two_isolations_do_not_mix():
    with isolated_plugins() as outer:
        outer.write(PLUGIN, name="outer")
        with isolated_plugins() as inner:
            assert "outer" not in {record.plugin for record in inner.registry.records()}
        assert get_registry().modality_owner("thermometer").plugin == "outer"
