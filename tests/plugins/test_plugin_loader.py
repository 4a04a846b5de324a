import importlib.metadata
import sys
import textwrap
import types

import pytest

from watersmeet.core.errors import PluginError
from watersmeet.plugins import ModalitySpec, PipelineSpec, Registry, hookimpl, loader, registry
from watersmeet.plugins.loader import BLOCKED, FAILED, LOADED, Choice, Found, find_plugins

EVERYTHING = Choice(allowed=None, blocked=frozenset())


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a module and give the entry point of a made-up package that names it; nothing real is discovered."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(name, body, *, distribution=None, version="1.0", target=None):
        module = "made_up_" + name.replace("-", "_")
        source = "from watersmeet.plugins import ModalitySpec, PipelineSpec, hookimpl\n" + textwrap.dedent(body)
        (tmp_path / f"{module}.py").write_text(source)
        written.append(module)
        point = importlib.metadata.EntryPoint(name, target or module, loader.GROUP)
        return Found(entry_point=point, distribution=distribution or f"pack-{name}", version=version)

    yield write
    for module in written:
        sys.modules.pop(module, None)


def good(name):
    return f"""
    @hookimpl
    def register_modalities():
        return [ModalitySpec(name="{name}", encoder="fractions:Fraction", embedder="decimal:Decimal")]
    """


def load(*found, choice=EVERYTHING):
    return Registry(found, choice)


BROKEN = {
    "raises at import": ("raise ZeroDivisionError('no sensor')", "ZeroDivisionError: no sensor"),
    "calls sys.exit": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "raises its own BaseException kind of exit": ("raise SystemExit('bye')", "SystemExit: bye"),
    "has a syntax error": ("def broken(:", "SyntaxError"),
    "imports what is missing": ("import surely_not_installed_anywhere", "surely_not_installed_anywhere"),
    "misspells a hook": ("@hookimpl\ndef register_modalites(): return []", "did you mean 'register_modalities'?"),
    "invents a hook": ("@hookimpl\ndef zzz(): return []", "unknown hook 'zzz'; hooks are register_modalities"),
    "asks for an argument nobody gives": (
        "@hookimpl\ndef register_modalities(context): return []",
        "hooks take no arguments: Plugin",
    ),
    "has no hook": ("x = 1", "implements no hook"),
    "fails in its hook": ("@hookimpl\ndef register_modalities(): raise OSError('disk')", "OSError: disk"),
    "exits in its hook": ("@hookimpl\ndef register_pipelines(): raise SystemExit(1)", "SystemExit: 1"),
    "returns nothing": ("@hookimpl\ndef register_modalities(): pass", "returned None, expected a list of ModalitySpec"),
    "misspells a field": (
        "@hookimpl\ndef register_modalities(): return [ModalitySpec(name='a', encodr='a:b', embedder='a:b')]",
        "ModalitySpec has no field 'encodr'; did you mean 'encoder'?",
    ),
    "gives media types as a text": (
        "@hookimpl\ndef register_pipelines(): return [PipelineSpec(name='a', pipeline='a:b', inputs='text/csv')]",
        "inputs is 'text/csv', expected a tuple",
    ),
    "leaks a cancelled task": ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
    "returns one spec": (
        "@hookimpl\ndef register_pipelines(): return PipelineSpec(name='a', pipeline='a:b')",
        "returned a PipelineSpec, expected a list",
    ),
    "returns something else": ("@hookimpl\ndef register_modalities(): return [1]", "a list with a int"),
    "returns a name twice": (
        "@hookimpl\ndef register_pipelines(): return [PipelineSpec(name='a', pipeline='a:b')] * 2",
        "the name 'a' twice",
    ),
    "is from the future": (
        "@hookimpl\ndef register_pipelines(): return [PipelineSpec(name='a', pipeline='a:b', contract=2)]",
        "written for contract 2 but this watersmeet understands 1 to 1",
    ),
    "has a field from the future": (
        "@hookimpl\ndef register_pipelines(): return [PipelineSpec(name='a', pipeline='a:b', price=1)]",
        "PipelineSpec has no field 'price'; fields are name, contract, summary, inputs, pipeline",
    ),
    "names a bad target": (
        "@hookimpl\ndef register_pipelines(): return [PipelineSpec(name='a', pipeline='a.b')]",
        "'a.b' is not of the form",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_recorded_and_the_others_work(plugin, case):
    body, reason = BROKEN[case]
    made = load(
        plugin("before", good("first")),
        plugin("broken", body, distribution="bad-package", version="0.3"),
        plugin("after", good("last")),
    )
    assert [spec.name for spec in made.modalities()] == ["first", "last"] and made.pipelines() == ()
    record = made.records()[1]
    assert (record.state, record.plugin, record.distribution, record.version) == (
        FAILED,
        "broken",
        "bad-package",
        "0.3",
    )
    assert reason in record.error and "\n" not in record.error and record.cause is not None
    # asking for it raises, with owner and reason; asking for others does not
    for ask in (made.modality, made.pipeline):
        with pytest.raises(PluginError) as caught:
            ask("broken")
        assert "broken (bad-package 0.3) failed to load" in str(caught.value) and reason in str(caught.value)
    with pytest.raises(PluginError, match=r"failed to load: broken \(bad-package 0.3\)"):
        made.modality("something-else")
    with pytest.raises(PluginError, match=r"1 plugin\(s\) failed to load"):
        made.raise_failures()
    assert made.modality_owner("last").distribution == "pack-after"


def test_keyboard_interrupt_is_not_swallowed(plugin):
    with pytest.raises(KeyboardInterrupt):
        load(plugin("stopped", "raise KeyboardInterrupt")).records()


def test_a_class_and_an_object_may_be_plugins(plugin):
    body = """
    class Plugin:
        @hookimpl
        def register_pipelines(self):
            return (PipelineSpec(name=name, pipeline="fractions:Fraction") for name in ("one", "two"))
    ready = Plugin()
    """
    made = load(plugin("classy", body, target="made_up_classy:Plugin"))
    assert [spec.name for spec in made.pipelines()] == ["one", "two"]
    made = load(plugin("ready", body, target="made_up_ready:ready"))
    assert [spec.name for spec in made.pipelines()] == ["one", "two"]
    made.raise_failures()


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, {"alpha", "beta", "gamma"}),
        ("", set()),
        (" , ", set()),
        ("alpha", {"alpha"}),
        ("alpha, Gamma", {"alpha", "gamma"}),
        ("pack_beta", {"beta"}),
        ("-alpha", {"beta", "gamma"}),
        ("alpha,beta,-alpha", {"beta"}),
        ("nobody", set()),
    ],
)
def test_the_environment_variable_chooses(plugin, value, names):
    found = [plugin(name, good(name)) for name in ("alpha", "beta", "gamma")]
    choice = Choice.from_environment({} if value is None else {loader.VARIABLE: value})
    made = load(*found, choice=choice)
    assert {spec.name for spec in made.modalities()} == names
    assert {r.plugin for r in made.records() if r.state == BLOCKED} == {"alpha", "beta", "gamma"} - names


def test_a_blocked_plugin_is_never_imported(plugin):
    found = plugin("loud", "raise AssertionError('imported')")
    made = load(found, choice=Choice.from_environment({loader.VARIABLE: "-loud"}))
    assert "made_up_loud" not in sys.modules and made.records()[0].state == BLOCKED
    with pytest.raises(PluginError, match=r"loud \(pack-loud 1.0\) is blocked by .*WATERSMEET_PLUGINS"):
        made.modality("loud")
    # and back again: blocking leaves nothing behind
    made = load(plugin("loud", good("loud")))
    assert made.modality("loud").name == "loud"


def test_a_name_with_two_owners_is_an_error_that_names_both_and_both_stay_reachable(plugin):
    one = plugin("one", good("sensor"), version="1.2")
    two = plugin("two", good("sensor").replace("decimal:Decimal", "fractions:Fraction"))
    made = load(one, two, plugin("three", good("other")))
    with pytest.raises(PluginError) as caught:
        made.modality("sensor")
    for word in ("one (pack-one 1.2)", "two (pack-two 1.0)", "'pack-one:sensor'", "'pack-two:sensor'"):
        assert word in str(caught.value)
    assert made.modality_owner("pack-two:sensor").plugin == "two" and made.modality_owner("one:sensor").plugin == "one"
    assert made.modality("other") and len(made.modalities()) == 3
    # two entry points of one package
    made = load(
        plugin("x", good("s"), distribution="p"), plugin("y", good("s").replace("decimal:", "a:"), distribution="p")
    )
    with pytest.raises(PluginError, match="'x:s' or 'y:s'"):
        made.modality("s")


def test_one_module_named_twice_is_one_registration(plugin):
    found = plugin("one", good("sensor"))
    again = Found(
        entry_point=importlib.metadata.EntryPoint("alias", "made_up_one", loader.GROUP), distribution="p", version="1"
    )
    assert load(found, again).modality("sensor").name == "sensor"


def test_unknown_names_get_a_hint(plugin):
    made = load(plugin("p", good("thermometer")))
    with pytest.raises(PluginError, match="no modality 'termometer'; did you mean 'thermometer'"):
        made.modality("termometer")
    with pytest.raises(PluginError, match="no modality 'zzz'; there are: thermometer"):
        made.modality("zzz")
    with pytest.raises(PluginError, match="no pipeline 'zzz'; there are: none"):
        made.pipeline("zzz")


def test_parts_are_imported_on_first_use_and_failures_name_the_owner(plugin, tmp_path):
    (tmp_path / "made_up_parts.py").write_text(
        "class Encoder:\n    def __init__(self, settings):\n        self.got = settings\n"
    )
    (tmp_path / "made_up_exit.py").write_text("raise SystemExit(2)\n")
    body = """
    @hookimpl
    def register_modalities():
        return [ModalitySpec(name="lazy", encoder="made_up_parts:Encoder", embedder="made_up_exit:Embedder")]

    @hookimpl
    def register_pipelines():
        return [PipelineSpec(name="lost", pipeline="made_up_parts:Nothing")]
    """
    made = load(plugin("lazy", body))
    made.raise_failures()
    assert "made_up_parts" not in sys.modules
    encoder = made.encoder("lazy", {"a": 1}, files={"f": b"x"})
    assert encoder.got == {"a": 1, "files": {"f": b"x"}} and "made_up_parts" in sys.modules
    with pytest.raises(PluginError, match=r"'lazy' of lazy \(pack-lazy 1.0\): embedder: .*SystemExit: 2"):
        made.embedder("lazy", 8, {})
    with pytest.raises(PluginError, match=r"has no decoder"):
        made.decoder("lazy")
    with pytest.raises(PluginError, match=r"'lost' of lazy .*has no attribute 'Nothing'"):
        made.resolve_pipeline("lost")
    sys.modules.pop("made_up_parts")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "Bad Name"}, "lower-case"),
        ({"name": ""}, "lower-case"),
        ({"encoder": None}, "encoder is None"),
        ({"embedder": 3}, "embedder is 3"),
        ({"contract": 0}, "contract 0"),
        ({"contract": "1"}, "contract '1'"),
        ({"writes": True}, "no decoder"),
    ],
)
def test_bad_specs_say_what_is_wrong(change, words):
    with pytest.raises(PluginError, match=words):
        ModalitySpec(**({"name": "a", "encoder": "a:b", "embedder": "a:b"} | change))


def test_a_class_is_a_target_too():
    spec = PipelineSpec(name="direct", pipeline=dict)
    module = types.SimpleNamespace(register_pipelines=hookimpl(lambda: [spec]))
    assert loader._collect(module) == ((), (spec,))


def test_broken_metadata_of_a_package_is_passed_over(plugin):
    class Damaged:
        @property
        def entry_points(self):
            raise ValueError("garbage")

    def package(name, entry_name):
        return types.SimpleNamespace(
            entry_points=[plugin(entry_name, good(entry_name)).entry_point],
            metadata={"Name": name},
            version="1",
        )

    found = find_plugins([package("zeta", "z"), Damaged(), package("Zeta", "copy"), package("watersmeet", "own")])
    assert [(item.distribution, item.entry_point.name) for item in found] == [("watersmeet", "own"), ("zeta", "z")]


@pytest.fixture
def process(monkeypatch):
    """Make the registry of this process one of the given plugins."""

    def begin(*found):
        registry.reset_registry()
        monkeypatch.setattr(registry, "find_plugins", lambda: found)
        return registry.get_registry()

    yield begin
    registry.reset_registry()


def test_the_registry_looks_once(process, monkeypatch):
    made = process()
    monkeypatch.setattr(registry, "find_plugins", lambda: pytest.fail("it looked again"))
    assert registry.get_registry() is made


def test_a_plugin_that_asks_for_another_while_it_is_imported_is_told_so(plugin, process):
    body = "from watersmeet.plugins import get_registry\nget_registry().modality('late')"
    made = process(plugin("curious", body), plugin("late", good("late")))
    record = made.records()[0]
    assert record.state == FAILED and "while plugins are loading" in record.error
    assert made.modality("late")


def test_states_are_words():
    assert {LOADED, FAILED, BLOCKED} == {"loaded", "failed", "blocked"}
