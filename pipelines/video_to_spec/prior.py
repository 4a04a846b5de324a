"""How much what plain code takes for likely weighs on the next symbol that a model says of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.hints import NOTHING
from watersmeet.pipelines.video_to_spec.likely import Likely
from watersmeet.pipelines.video_to_spec.observed import MAX_TEXTS

NATS = 3.0


class Prior:
    """`ids` maps each symbol of the markup to its id, `end` is the id that ends a turn."""

    def __init__(self, ids: Mapping[str, int], end: int) -> None:
        self._ids = ids
        self._actions = {ids[symbol]: action for action, symbol in markup.DO.items()}
        self._lines = [ids[f"<t{number}>"] for number in range(MAX_TEXTS)]
        self._behind = [end, *(ids[symbol] for symbol in (*markup.SHOWS.values(), *markup.CAN.values()))]
        self._go, self._new = ids[markup.GO], ids[markup.NEW]

    def after(self, said: Sequence[int], likely: Likely) -> dict[int, float]:
        """Nats that are added to the logits of the ids that may come behind `said`, where there are any.

        First stands a step, or none. Behind a step's start and end stands its target or none, behind `<go>` a screen, behind
        the moment of a new one its title. What stands behind a step that led away is less likely as long as that was not said.
        """
        more: dict[int, float] = {}
        if said and said[-1] == self._go:
            return more if likely.screen is None else {self._ids[likely.screen]: NATS}
        if len(said) >= 2 and said[-2] == self._new:
            return more if likely.title is None else {self._ids[likely.title]: NATS}
        if not any(token in self._actions for token in said):
            return self._first(likely)
        target = likely.targets.get(self._actions.get(said[-3], "")) if len(said) >= 3 else None
        if target == NOTHING:
            more = dict.fromkeys(self._lines, -NATS)
        elif target is not None:
            more = {self._ids[target]: NATS}
        if likely.leads is False:
            more[self._go] = -NATS
        elif likely.leads and self._go not in said:
            more |= dict.fromkeys(self._behind, -NATS)
        return more

    def _first(self, likely: Likely) -> dict[int, float]:
        more: dict[int, float] = {}
        if likely.acts is not None:
            more = dict.fromkeys(self._behind if likely.acts else self._actions, -NATS)
        if likely.action is not None:
            token = self._ids[markup.DO[likely.action]]
            more[token] = more.get(token, 0.0) + NATS
        return more
