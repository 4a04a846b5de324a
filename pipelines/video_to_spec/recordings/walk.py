"""What the user of a recording does: a walk through whatever the page offers, with a preference for what was not yet done."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from watersmeet.pipelines.data.generator.words import Words
from watersmeet.pipelines.video_to_spec.recordings.director import Director
from watersmeet.pipelines.video_to_spec.recordings.stage import Thing

_WEIGHTS = {
    "go": 1.6, "menu": 2.5, "modal": 2.0, "tab": 2.0, "page": 2.0, "theme": 0.7, "submit": 1.2, "busy": 2.0, "split": 1.5,
    "pop": 1.5, "tip": 1.2, "toast": 1.5, "field": 3.0, "tick": 1.0, "fold": 1.5, "close": 1.0, "item": 1.0, "card": 1.2,
}  # fmt: skip
_QUICK_S = 0.45  # a menu that was open for less was seen by nobody who looks once a second, or twice
_LONGEST = 60  # letters of a target's text; more is a paragraph that happens to be a link


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How one user behaves. seconds: how long about. quick_menus: share of menus that are open for 0.3 s.

    fields: by how much rather than usual a field is chosen. escape: share of menus without an entry to choose that are closed
    by the key; others by a press. gap: seconds of one long pause, 0 for none. elsewhere: paths
    that may be gone to without a press. known: paths that links may lead to.
    """

    seconds: float
    fields: float = 1.0
    escape: float = 1.0
    quick_menus: float = 0.3
    gap: float = 0.0
    elsewhere: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()


class Walk:
    """One user at one stage."""

    def __init__(self, director: Director, rng: random.Random, habits: Habits) -> None:
        self.director, self.rng, self.habits = director, rng, habits
        self.words = Words(rng)
        self.done: Counter[tuple[str, str, str | None]] = Counter()
        self.typed: set[tuple[str, str | None]] = set()

    def run(self) -> None:
        """Act until the time is over, or nothing more is to be done."""
        director, idle = self.director, 0
        director.rest(self.rng.uniform(0.5, 1.5))
        pause_at = self.habits.seconds * self.rng.uniform(0.3, 0.7) if self.habits.gap else None
        while director.now < self.habits.seconds and idle < 8:
            idle = 0 if self._one() else idle + 1
            director.rest(self.rng.uniform(0.3, 1.6))
            if pause_at is not None and director.now >= pause_at:
                director.rest(self.habits.gap)
                director.variations.add("static gap")
                pause_at = None
        director.rest(self.rng.uniform(0.6, 1.5))
        director.finish()

    def _one(self) -> bool:
        """One act; False if nothing came of it."""
        director, rng = self.director, self.rng
        if director.stage.ask("ends()") and director.wait_for_screen(8.0):
            return True
        things = [t for t in director.stage.things() if self._wanted(t)]
        dialog = any(thing.modal for thing in things)
        if dialog:
            things = [thing for thing in things if thing.modal]
            if rng.random() < 0.12 and director.key("Escape"):
                return True
        else:
            draw = rng.random()
            if draw < 0.12:
                return self._scroll()
            if draw < 0.16 and director.stage.ask("screen()")["key"][:1] != "/" and director.key("Control+k"):
                return True
            if draw < 0.2 and self.habits.elsewhere:
                return director.navigate(rng.choice(self.habits.elsewhere))
        if not things:
            return self._scroll()
        thing = rng.choices(things, [self._weight(t) for t in things])[0]
        self.done[director.screen, thing.kind, thing.text] += 1
        return self._use(thing)

    def _wanted(self, thing: Thing) -> bool:
        if thing.text is not None and len(thing.text) > _LONGEST:
            return False
        if thing.on and thing.kind in ("go", "tab", "page"):
            return False
        leads_away = thing.kind == "go" and "go" not in thing.data
        return not leads_away or self.director.stage.path_of(thing.href) in self.habits.known

    def _weight(self, thing: Thing) -> float:
        used = self.done[self.director.screen, thing.kind, thing.text]
        weight = _WEIGHTS[thing.kind] / (1 + 3 * used)
        if thing.kind == "submit" and any(screen == self.director.screen for screen, _ in self.typed):
            weight *= 3
        if thing.kind == "field":
            weight *= self.habits.fields * (0.2 if (self.director.screen, thing.text) in self.typed else 1)
        return weight

    def _use(self, thing: Thing) -> bool:
        director = self.director
        if thing.kind == "field":
            return self._type(thing)
        if thing.kind == "tip":
            return director.hover(thing)
        if thing.kind == "menu":
            return self._menu(thing)
        if thing.kind == "card":
            lanes = director.stage.ask(f"lanes({thing.ref})")
            return bool(lanes) and director.drag(thing, tuple(self.rng.choice(lanes)))
        return director.click(thing)

    def _menu(self, thing: Thing) -> bool:
        """Open a menu and choose from it, or leave it; some are open for 0.3 s only."""
        director, rng = self.director, self.rng
        before = {(t.kind, t.box) for t in director.stage.things()}
        quick = rng.random() < self.habits.quick_menus
        if not director.click(thing, brief=quick):
            return False
        inside = [
            t
            for t in director.stage.things()
            if (t.kind, t.box) not in before and t.kind in ("item", "go", "modal") and self._wanted(t)
        ]
        if not quick or not inside:
            director.rest(rng.uniform(0.6, 1.8))
        if not inside:
            by_key = self.habits.escape == 1 or rng.random() < self.habits.escape
            return (by_key and director.key("Escape")) or director.click(thing)
        director.click(rng.choice(inside), hurry=quick)
        menus = [one for one in director.shown if one.kind == "dropdown"]
        if quick and menus and menus[-1].end_s - menus[-1].start_s < _QUICK_S:
            director.variations.add("quick dropdown")
        return True

    def _type(self, thing: Thing) -> bool:
        director, rng = self.director, self.rng
        text = self._text_for(thing)
        how = "fill" if not thing.value else rng.choice(("replace", "append"))
        director.type_into(thing, f" {text}" if how == "append" else text, how)
        self.typed.add((director.screen, thing.text))
        if thing.form >= 0 and rng.random() < 0.15:
            director.rest(rng.uniform(0.2, 0.7))
            director.key("Enter")
        return True

    def _text_for(self, thing: Thing) -> str:
        name = (thing.text or "").lower()
        if thing.type == "email" or "email" in name:
            # now and then without what makes it an address, so that rules show
            return self.words.email() if self.rng.random() < 0.75 else self.words.word()
        if thing.type == "password":
            return "".join(self.rng.choices("abcdefgh2345678", k=self.rng.randint(6, 11)))
        if "phone" in name or "number" in name:
            return "".join(self.rng.choices("0123456789", k=9))
        if "name" in name:
            return self.words.name()[:18]
        if "city" in name:
            return self.words.city()[:18]
        return self.words.title(1, 3)[:24]

    def _scroll(self) -> bool:
        top, room = self.director.stage.ask("top()"), self.director.stage.ask("height()") - self.director.stage.size[1]
        if room < 60:
            return False
        down = top < 40 or (self.rng.random() < 0.5 and top < room - 40)
        return self.director.scroll(
            min(room - top, self.rng.randint(150, 600)) if down else -min(top, self.rng.randint(150, 600))
        )
