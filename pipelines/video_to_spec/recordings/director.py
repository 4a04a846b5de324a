"""Acts on a stage and films it: each act moves the pointer, presses, waits for the reaction and is written down.

Times are the recording's own, in seconds; the page's timers follow them. Nothing waits for a clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watersmeet.pipelines.data.recording import Recording
from watersmeet.pipelines.video_to_spec.recordings.film import Caret, Film, Rect
from watersmeet.pipelines.video_to_spec.recordings.stage import Stage, Thing
from watersmeet.pipelines.video_to_spec.spec import Action, Corners
from watersmeet.pipelines.video_to_spec.truth import Shown

BULLET = "\N{BULLET}"
_NEAR_KEYS = "qwertyuiopasdfghjklzxcvbnm"


@dataclass(frozen=True, kw_only=True)
class Act:
    """A step as it was played; `changed` is the box of the first reaction, `pattern` what kind of thing was used."""

    action: Action
    start: float
    end: float
    target: str | None
    text: str | None
    box: Corners | None
    changed: Rect | None
    from_screen: str
    to_screen: str
    pattern: str


@dataclass(frozen=True, kw_only=True)
class SeenScreen:
    """A screen at its first sight."""

    id: str
    title: str
    first_seen: float


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How quickly things happen: rest before a press, reaction after it, fading of what comes, letters a second."""

    rest: tuple[float, float] = (0.15, 0.7)
    reaction: tuple[float, float] = (0.07, 0.14)
    travel: tuple[float, float] = (0.25, 0.8)
    fade: float = 0.0
    letters: float = 6.0
    mistakes: float = 0.0


class Director:
    """Plays acts on `stage` into `recording`; the pointer is drawn if `cursor`."""

    def __init__(self, stage: Stage, recording: Recording, rng: random.Random, pace: Pace, *, cursor: bool) -> None:
        self.stage, self.recording, self.rng, self.pace, self.cursor = stage, recording, rng, pace, cursor
        self.now = 0.0
        self.film = Film(stage.look())
        self.acts: list[Act] = []
        self.shown: list[Shown] = []
        self.variations: set[str] = set()
        self.screens: dict[str, SeenScreen] = {}
        self.screen, self.arrived = "", 0.0
        self.visited: list[str] = []
        self._open: dict[tuple[str, str], tuple[float, Rect]] = {}
        self._cache: dict[tuple[Any, ...], Any] = {}
        self._version = 0
        self._caret: Caret | None = None
        self._at = (rng.randrange(40, stage.size[0] - 40), rng.randrange(40, stage.size[1] - 40))
        stage.page.mouse.move(*self._at)
        self.film.paint(0.0, stage.look())
        if cursor:
            recording.move(0.0, *self._at)
        self._note()

    # ------------------------------------------------------------------ time

    def wait(self, until: float) -> None:
        """Let time pass up to `until`, filming what changes by itself."""
        while (due := self.stage.ask("next()")) and self.now + due["ms"] / 1000 <= until:
            self._pass(due["ms"])
            if not due["hidden"]:
                self._film_timer(due)
        if until > self.now:
            self._pass((until - self.now) * 1000)

    def rest(self, seconds: float) -> None:
        """Do nothing for a while."""
        self.wait(self.now + seconds)

    def _pass(self, ms: float) -> None:
        self.stage.pass_time(ms)
        self.now += ms / 1000

    def _film_timer(self, due: dict[str, Any]) -> None:
        if due["box"] is None:
            self._shoot()
            return
        clip = self._clip(due["box"], 2)
        if clip is None:
            return
        key = (due["key"], clip, self._version)
        picture = self._cache.get(key) if due["key"] else None
        if picture is None:
            picture = self.stage.look(clip)
            if due["key"]:
                self._cache[key] = picture
        if self.film.paint(self.now, picture, clip[:2]):
            self.variations.add("spinner" if due["key"] else "moves by itself")

    def _clip(self, box: Sequence[float], margin: int) -> Rect | None:
        width, height = self.stage.size
        x0, y0 = max(0, int(box[0]) - margin), max(0, int(box[1]) - margin)
        x1, y1 = min(width, int(box[2]) + margin + 1), min(height, int(box[3]) + margin + 1)
        return (x0, y0, x1, y1) if x1 > x0 and y1 > y0 else None

    def _shoot(self, fade: float = 0.0) -> Rect | None:
        """Film the whole page as it is now; returns what changed."""
        picture = self.stage.look()
        changed = self.film.fade(self.now, picture, fade, self.recording.rate)
        self._version += 1
        self._cache.clear()
        self._note()
        return changed

    def _note(self) -> None:
        """Write down which screen this is, and what has come and gone."""
        screen = self.stage.ask("screen()")
        if (path := self.stage.path_of("")) not in self.visited:
            self.visited.append(path)
        if screen["key"] not in self.screens:
            seen = SeenScreen(id=f"s{len(self.screens) + 1}", title=screen["title"], first_seen=self.now)
            self.screens[screen["key"]] = seen
        if self.screen != self.screens[screen["key"]].id:
            self.screen, self.arrived = self.screens[screen["key"]].id, self.now
        here: dict[tuple[str, str], Rect] = {}
        for one in self.stage.ask("open()"):
            clip = self._clip(one["box"], 0)
            if clip is not None:
                here[one["kind"], one["text"]] = clip
        for key in [key for key in self._open if key not in here]:
            self._leave(key)
        for key, clip in here.items():
            self._open.setdefault(key, (self.now, clip))

    def _leave(self, key: tuple[str, str]) -> None:
        start, clip = self._open.pop(key)
        if self.now > start:
            end = round(self.now, 6)
            self.shown.append(Shown(kind=key[0], start_s=round(start, 6), end_s=end, box=corners(clip), text=key[1]))

    def finish(self) -> None:
        """End the recording here."""
        self._drop_caret()
        for key in list(self._open):
            self._leave(key)
        self.shown.sort(key=lambda one: (one.start_s, one.kind))
        self.recording.show(0.0, self.now, self.film.draw)
        self.recording.layers.insert(0, self.recording.layers.pop())

    # ------------------------------------------------------------------ acts

    def _travel(self, thing: Thing, lasting: float | None = None) -> None:
        place = thing.center
        if place == self._at:
            return
        lasting = self.rng.uniform(*self.pace.travel) if lasting is None else lasting
        self.wait(self.now + lasting)
        if self.cursor:
            self.recording.move(self.now, *place, lasting=lasting)
            if self.recording.pointer.changes:
                left = self.now - lasting / 2
                self.recording.forms += [(left, "arrow"), (self.now, "beam" if thing.kind == "field" else "hand")]
        self._at = place
        self.stage.page.mouse.move(*place)
        self._shoot()

    def click(self, thing: Thing, *, hurry: bool = False, brief: bool = False) -> bool:
        """Press on something; False, and nothing written down, if nothing came of it.

        hurry: without a rest before. brief: the next act follows at once, so nothing is waited for but the first reaction.
        """
        self._travel(thing, 0.14 if hurry else None)
        self.rest(0.06 if hurry else self.rng.uniform(*self.pace.rest))
        self._drop_caret()
        start, came_from = self.now, self.screen
        self.recording.presses.append(start)
        self.stage.page.mouse.down()
        leaves = thing.kind == "go" and bool(thing.href) and not thing.href.startswith("#")
        self.wait(start + self.rng.uniform(*self.pace.reaction))
        if leaves:
            with self.stage.page.expect_navigation(wait_until="load"):
                self.stage.page.mouse.up()
            changed, end = self._arrive()
        else:
            self.stage.page.mouse.up()
            changed, end = self._react(brief)
        if changed is None:
            return False
        self._write("click", start, end, thing, None, changed, came_from)
        return True

    def drag(self, thing: Thing, place: tuple[int, int]) -> bool:
        """Press on something, move it to `place` and let it go; False, and nothing written down, if it is where it was.

        There is no action of that name: what is written down is a press on it that ends when it is let go.
        """
        self._travel(thing)
        self.rest(self.rng.uniform(*self.pace.rest))
        self._drop_caret()
        start, came_from, begin = self.now, self.screen, self._at
        self.recording.presses.append(start)
        self.stage.page.mouse.down()
        self.wait(start + self.rng.uniform(*self.pace.reaction))
        count, lasting, changed = 12, self.rng.uniform(0.4, 0.9), None
        for k in range(1, count + 1):
            share = k / count
            x, y = (round(a + (b - a) * share) for a, b in zip(begin, place, strict=True))
            self.wait(self.now + lasting / count)
            if self.cursor:
                self.recording.move(self.now, x, y, lasting=lasting / count)
            self.stage.page.mouse.move(x, y)
            drawn = self.film.paint(self.now, self.stage.look())
            changed = changed or drawn
        self._at = place
        self.stage.page.mouse.up()
        dropped = self._shoot()
        if changed is None or dropped is None:
            return False
        self._write("click", start, self.now, thing, None, changed, came_from)
        return True

    def _arrive(self) -> tuple[Rect | None, float]:
        """Film a document that was just loaded; its charts draw themselves afterwards."""
        self.stage.arrange(settle_ms=20)
        self.stage.page.mouse.move(*self._at)
        changed, end = self._shoot(), self.now
        for ms in (100, 150, 250, 500, 2000):
            self.stage.run(ms)
            self.wait(self.now + min(ms, 300) / 1000)
            if self._shoot():
                self.variations.add("moves by itself")
        return changed, end

    def _react(self, brief: bool = False) -> tuple[Rect | None, float]:
        """Film the reaction until the page has settled; (what changed first, when it was settled)."""
        fade = self.pace.fade
        changed = self._shoot(fade)
        if changed is not None and fade:
            self.wait(self.now + fade)
        while (ms := self.stage.ask("pending()")) is not None:
            self.variations.add("busy")
            self.wait(self.now + ms / 1000)
        end = self.now
        if not self.stage.own_time and changed is not None and not brief:
            # what a page of others still does, it does soon
            for seconds in (0.15, 0.35):
                self.wait(self.now + seconds)
                if later := self._shoot():
                    changed, end = changed or later, self.now
        return changed, end

    def _write(
        self,
        action: Action,
        start: float,
        end: float,
        thing: Thing | None,
        text: str | None,
        changed: Rect | None,
        came: str,
    ) -> None:
        self.acts.append(
            Act(
                action=action,
                start=start,
                end=end,
                target=thing.text if thing else None,
                text=text,
                box=thing.box if thing else None,
                changed=changed,
                from_screen=came,
                to_screen=self.screen,
                pattern=thing.kind if thing else action,
            )
        )

    def type_into(self, thing: Thing, text: str, how: str) -> None:
        """Click into a field and type; `how`: "fill" an empty one, "replace" what stands there, or "append" to it."""
        self._travel(thing)
        self.rest(self.rng.uniform(*self.pace.rest))
        self._drop_caret()
        start, came_from = self.now, self.screen
        self.recording.presses.append(start)
        clicks = 3 if how == "replace" else 1
        self.wait(start + self.rng.uniform(*self.pace.reaction))
        self.stage.page.mouse.click(*thing.center, click_count=clicks)
        changed = self._shoot()
        if how == "append":
            self.stage.page.keyboard.press("End")
        if how != "fill":
            self.variations.add(f"prefilled: {how}")
        self._place_caret()
        self.rest(self.rng.uniform(0.2, 0.6))
        clip = self._clip(thing.box, 4)
        for key in _keystrokes(text, self.rng, self.pace.mistakes):
            if key == "Backspace":
                self.variations.add("correction")
            self.rest(self.rng.gammavariate(6.0, 1 / (6.0 * self.pace.letters)))
            self.stage.page.keyboard.press("Backspace") if key == "Backspace" else self.stage.page.keyboard.insert_text(
                key
            )
            if clip is not None:
                drawn = self.film.paint(self.now, self.stage.look(clip), clip[:2])
                changed = changed or drawn
            self._place_caret()
        end = self.now
        final = self.stage.ask(f"value({thing.ref})") or ""
        self._shoot()  # what is typed may change the page elsewhere
        if changed is None or not final:
            return
        if thing.type == "password":
            self.variations.add("password")
            final = BULLET * len(final)
        added = final.removeprefix(thing.value) if how == "append" else final
        self._write("type", start, end, thing, added or None, changed, came_from)

    def key(self, name: str) -> bool:
        """Press a key; False, and nothing written down, if nothing came of it."""
        start, came_from = self.now, self.screen
        self.wait(start + self.rng.uniform(*self.pace.reaction))
        self.stage.page.keyboard.press(name)
        changed, end = self._react()
        if changed is None:
            return False
        self._drop_caret()
        self._write("key", start, end, None, name, changed, came_from)
        return True

    def hover(self, thing: Thing) -> bool:
        """Bring the pointer to rest on something; False, and nothing written down, if nothing is shown."""
        open_before = set(self._open)
        self._travel(thing)
        start = self.now
        if set(self._open) <= open_before:
            return False
        self._write("hover", start, start, thing, None, self._clip(thing.box, 0), self.screen)
        self.rest(self.rng.uniform(0.6, 1.5))
        return True

    def scroll(self, distance: int) -> bool:
        """Turn the wheel by `distance` px, down if positive; False if the page does not move."""
        start, came_from, top = self.now, self.screen, self.stage.ask("top()")
        lasting = self.rng.uniform(0.3, 0.9)
        count, moved = 8, False
        for k in range(1, count + 1):
            self.wait(start + lasting * k / count)
            share = 3 * (k / count) ** 2 - 2 * (k / count) ** 3
            self.stage.ask(f"scroll({top + round(distance * share)})")
            picture = self.stage.look()
            moved = self.film.paint(self.now, picture) is not None or moved
        self._shoot()
        if not moved or self.stage.ask("top()") == top:
            return False
        self._write("scroll", start, self.now, None, "down" if distance > 0 else "up", None, came_from)
        return True

    def navigate(self, path: str) -> bool:
        """Go somewhere without a press on the page."""
        start, came_from = self.now, self.screen
        self.wait(start + self.rng.uniform(*self.pace.reaction))
        self.stage.open(path, settle_ms=20)
        changed, end = self._arrive()
        if changed is None or self.screen == came_from:
            return False
        self._write("navigate", start, end, None, None, None, came_from)
        return True

    def wait_for_screen(self, most: float) -> bool:
        """Wait until the page goes on by itself."""
        # waiting begins when what was done last is done
        start, came_from = max([0.0, *(act.end for act in self.acts[-1:])]), self.screen
        most += self.now - start
        while self.now < start + most and self.screen == came_from:
            self.rest(0.25)
        if self.screen == came_from:
            return False
        self._write("wait", start, self.arrived, None, None, None, came_from)
        return True

    # ------------------------------------------------------------------ the caret

    def _place_caret(self) -> None:
        place = self.stage.ask("caret()")
        if place is None:
            return
        if self._caret is None:
            self._caret = Caret(self.now, place[3])
        self._caret.move(self.now, place)

    def _drop_caret(self) -> None:
        if self._caret is not None and self.now > self._caret.start:
            self.recording.show(self._caret.start, self.now, self._caret.draw)
        self._caret = None


def _keystrokes(text: str, rng: random.Random, mistakes: float) -> Iterator[str]:
    """Letters, now and then a wrong one or two and as many times Backspace; what remains is `text`."""
    for letter in text:
        if letter.isalpha() and rng.random() < mistakes:
            count = rng.choice((1, 1, 2))
            for _ in range(count):
                yield rng.choice(_NEAR_KEYS)
            for _ in range(count):
                yield "Backspace"
        yield letter


def without_pointer(act: Act) -> Act:
    """The act as it can be known when no pointer is drawn: where is what changed."""
    return replace(act, box=None if act.changed is None else corners(act.changed))


def corners(rect: Rect) -> Corners:
    """A box of whole px as a specification has it."""
    return float(rect[0]), float(rect[1]), float(rect[2]), float(rect[3])
