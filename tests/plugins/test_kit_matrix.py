"""Each of the sixteen checks fails for its own reason, and only for it: wrong plugins against all checks."""

import importlib
import json

import kit_faults
import pytest
from kit_faults import BASES, FAULTS

from watersmeet.plugins.survey import survey
from watersmeet.testing import MODALITY_CHECKS, Subject, examine, isolated_plugins
from watersmeet.testing.checks import FAILED, PASSED, SKIPPED
from watersmeet.testing.subject import spawning


@pytest.fixture(scope="module")
def outcomes():
    """Outcomes of all checks by number, for a plugin by name; all plugins are there at once and share one worker."""
    with isolated_plugins() as plugins:
        (plugins.folder / "jax.py").write_text("")
        wanted = {what: (base, module, parts) for what, (base, module, parts, *_) in FAULTS.items()}
        wanted |= {base: (base, "", "") for base in BASES}
        for what, (base, module, parts) in wanted.items():
            source, rest = kit_faults.sources(base, what, module, parts)
            written = plugins.write(source, name=kit_faults.plugin_name(what))
            (plugins.folder / f"{written.module}_parts.py").write_text(rest)
        importlib.invalidate_caches()
        seen = {one.plugin: one for one in survey()}
        with spawning() as pool:

            def examined(what):
                name = kit_faults.plugin_name(what)
                subject = Subject(modality=name, pool=pool)
                subject.seen = seen[name]
                return {outcome.check.number: outcome for outcome in examine(subject).outcomes()}

            yield examined


@pytest.mark.parametrize("base", BASES)
def test_a_plugin_that_keeps_the_contract_passes(base, outcomes):
    found = outcomes(base)
    assert {number: outcome.detail for number, outcome in found.items() if outcome.state == FAILED} == {}
    skipped = {number for number, outcome in found.items() if outcome.state == SKIPPED}
    assert skipped == {"photo": {13}, "letters": {7, 8, 15}}[base]


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_fails_its_own_check_and_no_other(what, outcomes):
    *_, number, words = FAULTS[what]
    found = outcomes(what)
    failed = {index: outcome.detail for index, outcome in found.items() if outcome.state == FAILED}
    assert list(failed) == [number], failed
    assert words in failed[number]
    # what could not be tried says which check stands in the way
    for index, outcome in found.items():
        if outcome.blocked and outcome.detail.startswith("waits for"):
            # a plugin that could not be loaded stands in the way of all, by way of the first that needs it
            assert number in _all_needs(index) or number < 3
    sentence = found[number].sentence()
    assert "Why it matters: " in sentence and "What to change: " in sentence
    if number > 2:
        assert sum(outcome.state == PASSED for outcome in found.values()) >= 2


def _all_needs(number):
    needs = {check.number: check.needs for check in MODALITY_CHECKS}
    return {number} | {deeper for one in needs[number] for deeper in _all_needs(one)}


def test_every_check_has_a_plugin_that_fails_it():
    assert {number for *_, number, _ in FAULTS.values()} == {check.number for check in MODALITY_CHECKS}
    assert [check.number for check in MODALITY_CHECKS] == list(range(1, 17))
    for check in MODALITY_CHECKS:
        assert check.rule and check.reason.endswith(".") and check.fix.endswith("."), check.name
        json.dumps(check.rule)
