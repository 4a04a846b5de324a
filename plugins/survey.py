"""Look at all plugins from outside: a child process imports them, so that none can harm or delay who only asks.

The child says which plugin it begins with and what became of it. One that takes too long is given up together with the
child, and a new child goes on after it; one that takes the child down with it is recorded as having done so.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from watersmeet.core.errors import PluginError
from watersmeet.plugins.hookspecs import PROJECT
from watersmeet.plugins.loader import BLOCKED, FAILED, LOADED, Choice, Found, PluginRecord, load_plugin, normalise
from watersmeet.plugins.registered import registered

LIMIT_S = 10.0
"""Seconds that one plugin may take to be imported before a listing gives it up."""

HEAVY = ("torch", "tensorflow", "jax", "transformers")
"""Libraries that take seconds to import; a plugin module that needs one names the class that does instead."""


@dataclass(frozen=True, kw_only=True)
class Brought:
    """One spec, without the classes behind it. directions: of a modality, "reads", "writes" or "reads+writes"."""

    kind: str
    name: str
    summary: str = ""
    takes: tuple[str, ...] = ()
    directions: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What became of one plugin in the child. The first seven fields are those of `PluginRecord`.

    class_: class of the error. heavy: slow libraries it imported. printed: the start of what it printed.
    """

    plugin: str
    target: str
    distribution: str
    version: str
    state: str
    error: str = ""
    seconds: float = 0.0
    class_: str = ""
    heavy: tuple[str, ...] = ()
    printed: str = ""
    brings: tuple[Brought, ...] = field(default=())

    @property
    def owner(self) -> str:
        """The plugin and its package for messages: "series (my-package 0.3)"."""
        return f"{self.plugin} ({f'{self.distribution} {self.version}'.strip()})"

    @property
    def own(self) -> bool:
        """Whether it is a plugin of watersmeet itself."""
        return normalise(self.distribution) == PROJECT


def survey(*, only: str | None = None, limit_s: float = LIMIT_S) -> list[Seen]:
    """What became of each plugin, or of those with the given plugin or package name; in load order.

    limit_s: seconds for each. Raises PluginError when no child can be started.
    """
    registered()  # what is wrong with it is better said here than by the child
    seen: list[Seen] = []
    while True:
        whole = _child(seen, only, limit_s)
        if whole:
            return seen


def collisions(seen: list[Seen]) -> dict[tuple[str, str], list[Seen]]:
    """Plugins by (kind, name) of what several of them bring, where they are not the same module."""
    owners: dict[tuple[str, str], list[Seen]] = {}
    for one in seen:
        for item in one.brings:
            others = owners.setdefault((item.kind, item.name), [])
            if one.target not in [other.target for other in others]:
                others.append(one)
    return {key: value for key, value in owners.items() if len(value) > 1}


def _child(seen: list[Seen], only: str | None, limit_s: float) -> bool:
    """Run one child from where the last one ended; True when it came to the end of the list."""
    code = (
        "import sys, json; order = json.loads(sys.argv[1]); sys.path[:] = order['path']; "
        "from watersmeet.plugins.survey import serve; serve(order)"
    )
    order = json.dumps({"path": sys.path, "skip": len(seen), "only": only})
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code, order],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # a plugin that stops its process group must not stop ours
            start_new_session=True,
        )
    except OSError as error:
        raise PluginError(f"no process could be started to look at the plugins: {error.strerror or error}") from error
    lines: queue.Queue[bytes | None] = queue.Queue()
    tail = bytearray()
    readers = [
        threading.Thread(target=_read_lines, args=(process, lines), daemon=True),
        threading.Thread(target=_keep_tail, args=(process, tail), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        return _listen(process, lines, tail, seen, limit_s)
    finally:
        process.kill()
        process.wait()


def _read_lines(process: subprocess.Popen[bytes], lines: queue.Queue[bytes | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _keep_tail(process: subprocess.Popen[bytes], tail: bytearray) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        tail += line
        del tail[:-2000]


def _listen(
    process: subprocess.Popen[bytes],
    lines: queue.Queue[bytes | None],
    tail: bytearray,
    seen: list[Seen],
    limit_s: float,
) -> bool:
    current: dict[str, Any] | None = None
    while True:
        try:
            # the start of Python itself is not the plugin's time
            line = lines.get(timeout=None if current is None else limit_s)
        except queue.Empty:
            assert current is not None
            error = (
                f"importing it took longer than {limit_s:g} s, so it was given up; import slow libraries on first use"
            )
            seen.append(Seen(**current, state=FAILED, error=error, seconds=limit_s, class_="Timeout"))
            return False
        if line is None:
            code = process.wait()
            if current is None:
                text = tail.decode("utf-8", "replace").strip().splitlines()
                raise PluginError(f"the process that looks at the plugins ended with {_ending(code)}: {text[-1:]}")
            error = f"importing it ended the process ({_ending(code)}); import nothing that can do that"
            seen.append(Seen(**current, state=FAILED, error=error, class_="Ended"))
            return False
        try:
            message = json.loads(line)
        except ValueError:
            continue  # something else wrote into our pipe
        if message.get("done"):
            return True
        if "begins" in message:
            current = message["begins"]
        elif "ended" in message:
            seen.append(_seen(message["ended"]))
            current = None


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _seen(values: dict[str, Any]) -> Seen:
    brings = tuple(Brought(**item | {"takes": tuple(item["takes"])}) for item in values.pop("brings"))
    return Seen(**values | {"heavy": tuple(values["heavy"])}, brings=brings)


# ---- the child --------------------------------------------------------------------------------------------------


def serve(order: dict[str, Any]) -> None:
    """What the child does: load one plugin after the other and report on the standard output it was born with."""
    from watersmeet.plugins.loader import find_plugins

    # plugins, and what they start, get another standard output
    report = os.dup(1)
    os.set_inheritable(report, False)
    os.dup2(2, 1)
    choice = Choice.from_environment()
    wanted = None if order["only"] is None else normalise(order["only"])
    found = [
        item
        for item in find_plugins()
        if wanted is None or wanted in (normalise(item.entry_point.name), normalise(item.distribution))
    ]
    for item in found[order["skip"] :]:
        _say(report, {"begins": _named(item)})
        _say(report, {"ended": _look(item, choice)})
    _say(report, {"done": True})
    # threads that a plugin started would keep the child alive, and what it registered for the end need not run
    os._exit(0)


def _say(report: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(report, data) :]


def _named(item: Found) -> dict[str, Any]:
    point = item.entry_point
    return {
        "plugin": point.name,
        "target": point.value,
        "distribution": item.distribution,
        "version": item.version,
    }


def _look(item: Found, choice: Choice) -> dict[str, Any]:
    before = {name for name in HEAVY if name in sys.modules}
    started = time.perf_counter()
    with _captured() as printed:
        try:
            record = load_plugin(item, choice)
        except KeyboardInterrupt:
            # nobody can press Ctrl-C here: the plugin raised it
            values = _named(item) | {"state": FAILED, "error": "KeyboardInterrupt", "class_": "KeyboardInterrupt"}
            seconds = time.perf_counter() - started
            return values | {"seconds": seconds, "heavy": [], "printed": printed.getvalue()[:200], "brings": []}
    assert record.state in (LOADED, FAILED, BLOCKED)
    return _named(item) | {
        "state": record.state,
        "error": record.error,
        "seconds": record.seconds,
        "class_": type(record.cause).__name__ if record.cause is not None else "",
        "heavy": [name for name in HEAVY if name in sys.modules and name not in before],
        "printed": printed.getvalue()[:200],
        "brings": [asdict(one) for one in brought(record)],
    }


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    # `load_plugin` sends what is printed to stderr
    kept = sys.stderr
    sys.stderr = io.StringIO()
    try:
        yield sys.stderr
    finally:
        sys.stderr = kept


def brought(record: PluginRecord) -> tuple[Brought, ...]:
    """The specs of a record without their classes."""
    modalities = [
        Brought(
            kind="modality",
            name=spec.name,
            summary=str(spec.summary),
            takes=tuple(str(word) for word in spec.media_types),
            directions="+".join(word for word, on in (("reads", spec.reads), ("writes", spec.writes)) if on),
        )
        for spec in record.modalities
    ]
    pipelines = [
        Brought(
            kind="pipeline",
            name=spec.name,
            summary=str(spec.summary),
            takes=tuple(str(word) for word in spec.inputs),
        )
        for spec in record.pipelines
    ]
    return (*modalities, *pipelines)
