"""A made-up product: a page with several views that behaves (`app.js`) like the products in recordings do.

Menus, dialogs that dim the page and such that do not, toasts, tabs, popovers, pagination, forms with rules, busy
buttons that rename, split or vanish, autosave, cards to drag, a theme switch, countdowns, spinners and charts that draw
themselves.
"""

import random
from collections.abc import Callable
from functools import cache
from html import escape as e
from importlib import resources
from pathlib import Path

from watersmeet.pipelines.data.generator import blocks, looks
from watersmeet.pipelines.data.generator.kit import Kit
from watersmeet.pipelines.data.generator.words import COLUMNS, HEADS, LABELS, NAV, STATS, TAGS, Words

BASE = "/packages"
_SCRIPTS = "watersmeet.pipelines.video_to_spec.recordings"
_WAITS = (0, 400, 700, 1200, 2400)
CSS = """
[hidden]{display:none!important} .w-menu{position:absolute;z-index:60;min-width:170px;background:var(--s);color:var(--i);border:1px solid var(--b);border-radius:6px;box-shadow:0 6px 20px rgba(0,0,0,.18);padding:6px 0}
.w-menu a{display:block;padding:7px 14px;color:inherit!important;text-decoration:none;cursor:pointer} .w-menu a:hover{background:rgba(127,127,127,.16)} .w-anchor{position:relative;display:inline-block}
.w-layer{position:fixed;inset:0;display:flex;align-items:center;justify-content:center;pointer-events:none;z-index:80} .w-dim{background:rgba(0,0,0,.5);pointer-events:auto}
.w-dialog{pointer-events:auto;background:var(--s);color:var(--i);border:1px solid var(--b);border-radius:8px;padding:20px;width:420px;box-shadow:0 10px 40px rgba(0,0,0,.3)}
#toasts{position:fixed;z-index:90;display:flex;flex-direction:column;gap:8px} .w-toast{background:#222;color:#fff;padding:10px 16px;border-radius:6px;max-width:340px}
.w-tip,.w-pop{position:fixed;z-index:70;background:#333;color:#fff;border-radius:5px;padding:6px 10px;font-size:13px;max-width:260px} .w-pop{position:absolute;left:0;top:100%;width:230px;background:var(--s);color:var(--i);border:1px solid var(--b)}
.w-spin{display:inline-block;width:26px;height:26px;border:3px solid rgba(127,127,127,.35);border-top-color:currentColor;border-radius:50%} .w-little{width:12px;height:12px;border-width:2px;vertical-align:-1px} [data-view]{position:relative;min-height:calc(100vh - 90px)}
.w-cover-all{position:absolute;inset:0;background:var(--g);z-index:20;display:flex;align-items:flex-start;justify-content:center;padding-top:160px} .w-cover-all span{display:inline-block;width:30px;height:30px;line-height:0}
.w-fault{display:block;color:#d33;margin-top:3px} .w-bars{display:flex;align-items:flex-end;gap:10px;height:150px} .w-bars div{flex:1;background:var(--p)} .w-night{filter:invert(.92) hue-rotate(180deg)} .w-night body{background:#fff}
button:hover,[data-go]:hover,[data-tab]:hover{filter:brightness(.94)} .w-tabrow{display:flex;gap:4px;border-bottom:1px solid var(--b);margin-bottom:14px} .w-tabrow a{padding:8px 14px;color:inherit;opacity:.7;text-decoration:none;cursor:pointer} .w-tabrow .w-on{opacity:1;border-bottom:2px solid var(--p)}
.w-lanes{display:flex;gap:16px;align-items:flex-start} .w-lane{flex:1;min-height:260px;padding:10px;border-radius:8px;background:rgba(127,127,127,.1)} .w-held{position:relative;z-index:50;box-shadow:0 8px 20px rgba(0,0,0,.3)}
.w-note{background:var(--s);color:var(--i);border:1px solid var(--b);border-radius:6px;padding:12px;margin-bottom:10px;cursor:grab;user-select:none}
.w-pager{display:flex;gap:6px;margin-top:10px} .w-pager a{padding:4px 10px;border:1px solid var(--b);color:inherit;text-decoration:none;cursor:pointer} .w-pager .w-on{background:var(--p);color:#fff}
"""


class _App:
    def __init__(self, seed: int, packages: Path, wide: int) -> None:
        self.rng = random.Random(f"app {seed}")
        self.look = looks.look(self.rng, BASE, narrow=False)
        self.words = Words(self.rng, "en")
        self.kit = Kit(self.rng, self.look, self.words, packages)
        self.wide = wide
        self.dialogs: list[str] = []
        self.views: dict[str, tuple[str, str]] = {}
        self.count = 0

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def act(self, text: str, kind: str = "plain", **data: str | int) -> str:
        """A button that does something: `menu=..`, `modal=..`, `busy=..`, ... become data attributes."""
        made = self.kit.button(text, kind, False)
        attributes = "".join(f' data-{key.replace("_", "-")}="{e(str(value))}"' for key, value in data.items())
        return made.replace(" class=", f"{attributes} class=", 1)

    def field(self, label: str, value: str = "", **more: str) -> str:
        """A line of a form. Only one-line inputs, since what is typed is then always to be seen."""
        kind = "password" if "assword" in label else "email" if "mail" in label else "text"
        css = {"bootstrap": "form-control", "bulma": "input", "own": "w-input"}.get(self.kit.family, "")
        attributes = "".join(f" {key}" if not given else f' {key}="{e(given)}"' for key, given in more.items())
        bare = self.kit.input_style == 2 and not value
        head = "" if bare else f"<label>{e(label)}</label>"
        hint = label if bare else self.rng.choice(("", f"Enter {label.lower()}"))
        control = f'<input type="{kind}" class="{css}" value="{e(value)}" placeholder="{e(hint)}"{attributes}>'
        return f'<div class="field" style="margin-bottom:12px;max-width:460px">{head}<div>{control}</div></div>'

    def menu(self, text: str, items: list[str], *, keep: bool = False) -> str:
        name, label = self.name("menu"), self.name("label")
        links = "".join(f'<a data-item="{label if keep else ""}" role="menuitem">{e(item)}</a>' for item in items)
        button = self.act(text, "line", menu=name).replace(f">{e(text)}<", f'><span id="{label}">{e(text)}</span> ▾<')
        return f'<span class="w-anchor">{button}<div class="w-menu" role="menu" id="{name}" hidden>{links}</div></span>'

    def dialog(self, title: str, *, field: bool = False, identity: str = "") -> str:
        """The id of a new dialog; half of them leave the page behind as it is."""
        name = identity or self.name("dialog")
        dim = self.rng.random() < 0.5
        inside = (
            self.field(self.rng.choice(LABELS[:9]), required="") if field else f"<p>{e(self.words.sentence(6, 14))}</p>"
        )
        act = self.rng.choice(("Confirm", "Delete", "Create", "Invite", "Apply"))
        says = {
            "say": f"{self.words.title(1, 2)} {self.rng.choice(('saved', 'updated', 'removed', 'created'))}",
            "ms": self.rng.choice((1500, 2500, 4000)),
        }
        main = self.act(act, "main", submit="", busy=self.rng.choice(_WAITS), clear="", during="Please wait…", **says)
        row = (
            f'<div class="w-tight" style="justify-content:flex-end">{self.act("Cancel", "plain", close="")}{main}</div>'
        )
        self.dialogs.append(
            f'<div class="w-layer"><form class="w-dialog" role="dialog" id="{name}" data-dim="{1 if dim else ""}" data-focus="{1 if identity else ""}" hidden>'
            f'<h4 style="margin-top:0">{e(title)}</h4>{inside}{row}</form></div>'
        )
        return name

    def chart(self) -> str:
        bars = "".join(f'<div data-bar="{self.rng.randint(15, 100)}" style="height:0"></div>' for _ in range(8))
        return self.kit.card(f'<div class="w-bars" data-draw>{bars}</div>', head=e(self.rng.choice(HEADS)))

    def restless(self) -> str:
        """Things that move without anybody's doing."""
        made = [
            lambda: (
                f'<span class="w-badge" style="background:#555;color:#fff;padding:3px 9px" data-countdown data-from="{self.rng.randint(40, 600)}">0:00</span>'
            ),
            lambda: '<span style="display:inline-block;line-height:0"><i class="w-spin w-little" data-spin></i></span>',
            lambda: f'<span data-clock data-from="{self.rng.randint(30, 3000)}">0:00</span>',
        ]
        return self.rng.choice(made)() if self.rng.random() < 0.5 else ""

    def head(self, title: str, right: str = "") -> str:
        return f'<div class="w-between" style="margin-bottom:18px"><h1 style="margin:0;font-size:28px">{e(title)}</h1><div class="w-tight">{self.restless()}{right}</div></div>'

    # ---- views
    def dashboard(self, title: str) -> str:
        new = self.dialog(f"New {self.words.word()}", field=True)
        stats = blocks.grid(self.kit, [blocks.stat(self.kit, self.rng.randrange(3)) for _ in range(3)], 3)
        tip = f' data-tip="{e(self.words.sentence(3, 8))}"'
        info = f'<button type="button" class="w-btn" aria-label="info"{tip}>{e(self.words.pick(STATS))}</button>'
        right = self.menu(self.rng.choice(("Last week", "This month", "Filter")), self.rng.sample(TAGS, 4), keep=True)
        return (
            self.head(title, right + self.act("New", "main", modal=new))
            + stats
            + blocks.split(
                self.kit,
                self.chart(),
                self.kit.card(f"<p>{e(self.words.paragraph(1, 2))}</p>{info}", head=blocks.head(self.kit)),
            )
        )

    def listing(self, title: str) -> str:
        columns = self.rng.sample(COLUMNS, 4)
        pages = self.rng.randint(2, 4)
        tables = "".join(
            f'<div data-rows="{k}"{" hidden" if k else ""}>'
            + self.kit.table(columns, [[e(self.words.cell(c)) for c in columns] for _ in range(self.rng.randint(5, 9))])
            + "</div>"
            for k in range(pages)
        )
        links = "".join(f'<a data-page="{k}" class="{"" if k else "w-on"}">{k + 1}</a>' for k in range(pages))
        pair = self.name("pair")
        sure = f'<span id="{pair}" hidden>{self.act("Yes, delete", "main", busy=self.rng.choice(_WAITS), during="Deleting…", vanish="", say="Row deleted")}</span>'
        tools = f'<div class="w-tight" style="margin-bottom:12px">{self.menu("Status", self.rng.sample(TAGS, 4), keep=True)}{self.act("Delete", "line", split=pair)}{sure}{self.act("Export", "line", busy=self.rng.choice(_WAITS), during="Exporting…", after="Exported")}</div>'
        long = f"<p>{e(self.words.paragraph(3, 6))}</p>" * self.rng.randint(0, 5)
        return (
            self.head(title)
            + tools
            + f'<div data-paged>{self.kit.card(tables)}<div class="w-pager">{links}</div></div>{long}'
        )

    def form(self, title: str) -> str:
        labels = self.rng.sample(
            [x for x in LABELS if x not in ("Date of birth", "Expiry date")], self.rng.randint(2, 4)
        )
        fields = "".join(
            self.field(
                label,
                self.words.title(1, 2)
                if self.rng.random() < 0.3 and "assword" not in label and "mail" not in label
                else "",
                **({"required": ""} if self.rng.random() < 0.5 else {}),
            )
            for label in labels
        )
        then = (
            {"say": f"{title} saved"} if self.rng.random() < 0.6 or not self.views else {"then": next(iter(self.views))}
        )
        button = self.act(
            "Save", "main", submit="", busy=self.rng.choice(_WAITS), after=self.rng.choice(("Save", "Saved")), **then
        )
        return self.head(title) + self.kit.card(f"<form>{fields}{button}</form>")

    def settings(self, title: str) -> str:
        names = self.rng.sample(HEADS, 3)
        tabs = "".join(f'<a data-tab="{k}" class="{"" if k else "w-on"}">{e(n)}</a>' for k, n in enumerate(names))
        pop = self.name("pop")
        help_text = f'<span class="w-anchor">{self.act("Help", "text", pop=pop)}<div class="w-pop" id="{pop}" data-kind="popover" hidden>{e(self.words.sentence(5, 12))}</div></span>'
        panels = [
            f'<div data-autosave>{self.field(self.rng.choice(("Title", "Company", "Website")), self.words.title(1, 2))}<small class="w-saved" data-kind="autosave" hidden>All changes saved</small></div>',
            f"<p>{e(self.words.paragraph(1, 2))}</p>{help_text}",
            f"<p>{e(self.words.paragraph(1, 2))}</p>{self.act('Copy', 'plain', toast='Copied to the clipboard', ms=self.rng.choice((1200, 2000)))}",
        ]
        inside = "".join(f'<div data-panel="{k}"{" hidden" if k else ""}>{p}</div>' for k, p in enumerate(panels))
        return self.head(title) + f'<div data-tabs><div class="w-tabrow">{tabs}</div>{self.kit.card(inside)}</div>'

    def board(self, title: str) -> str:
        lanes = []
        for name in self.rng.sample(("To do", "Planned", "In progress", "In review", "Blocked", "Done"), 3):
            notes = "".join(
                f'<div class="w-note" data-card>{e(self.words.title(2, 4))}</div>'
                for _ in range(self.rng.randint(1, 3))
            )
            lanes.append(f'<div class="w-lane" data-lane><h5 style="margin:0 0 10px">{name}</h5>{notes}</div>')
        return self.head(title) + f'<div class="w-lanes">{"".join(lanes)}</div>'

    def login(self, title: str) -> str:
        home = next(iter(self.views))
        fields = self.field("Email address", required="") + self.field("Password", required="")
        button = self.act(
            "Sign in", "main", submit="", busy=self.rng.choice(_WAITS[1:]), during="Signing in…", then=home
        )
        return f'<div style="max-width:420px;margin:40px auto"><h1 style="font-size:26px">{e(title)}</h1>{self.kit.card(f"<form>{fields}{button}</form>")}</div>'

    def waiting(self, title: str) -> str:
        home = next(iter(self.views))
        return f'<div class="w-center" style="padding-top:90px"><h1 style="font-size:26px">{e(title)}</h1><p>{e(self.words.sentence(4, 8))}</p><p class="w-big" data-countdown data-then="{home}" data-from="3">0:03</p></div>'

    # ---- the whole page
    def page(self) -> str:
        makers: list[tuple[str, Callable[[str], str]]] = [
            ("listing", self.listing), ("form", self.form), ("settings", self.settings), ("form2", self.form), ("listing2", self.listing), ("board", self.board),
        ]  # fmt: skip
        titles = self.rng.sample(NAV[:45], 7)
        self.views["dashboard"] = (titles[0], self.dashboard(titles[0]))
        for (key, make), title in zip(self.rng.sample(makers, self.rng.randint(2, 4)), titles[1:], strict=False):
            self.views[key] = (title, make(title))
        if self.rng.random() < 0.4:
            title = self.rng.choice(("Welcome back", "Sign in", "Log in to your account"))
            self.views["login"] = (title, self.login(title))
        if self.rng.random() < 0.35:
            title = self.rng.choice(("Payment received", "Please wait a moment", "Thank you"))
            self.views["waiting"] = (title, self.waiting(title))
        self.dialog(self.rng.choice(("Go to", "Search", "Jump to a page")), field=True, identity="palette")
        return self._document()

    def _document(self) -> str:
        look, rng = self.look, self.rng
        glyphs = rng.random() < 0.6

        def entry(key: str, title: str) -> str:
            wait = rng.choice((0, 0, 0, 600, 1500))
            icon = self.kit.icon() if glyphs else ""
            return f'<li><a href="#" data-go="{key}" data-wait="{wait}">{icon}<span>{e(title)}</span></a></li>'

        links = "".join(entry(key, title) for key, (title, _) in self.views.items())
        brand = f'<a href="#" class="w-brand">{self.kit.logo()}<span>{e(self.words.company()[:18])}</span></a>'
        theme = f'<button type="button" class="w-btn" data-theme="" aria-label="theme">{self.kit.icon("eye") or "◐"}</button>'
        user = self.menu(self.words.name()[:16], rng.sample(("Profile", "Settings", "Billing", "Help", "Log out"), 3))
        alone = rng.random() < 0.3
        nav = f'<nav class="w-bar">{brand}<ul>{links}</ul><span class="w-push"></span>{theme}{user}</nav>'
        side = f'<nav class="w-side">{brand}<ul style="margin-top:14px">{links}</ul></nav>'
        bar = f'<header class="w-bar"><span class="w-push"></span>{theme}{user}</header>'
        views = "".join(f'<section data-view="{key}" hidden>{body}</section>' for key, (_, body) in self.views.items())
        main = f'<main class="w-pad">{views}</main>'
        body = f"{nav}{main}" if alone else f'<div class="w-app">{side}<div class="w-main">{bar}{main}</div></div>'
        first = "login" if "login" in self.views and rng.random() < 0.7 else "dashboard"
        corner = rng.choice(
            ("right:20px;top:20px", "right:20px;bottom:20px", "left:50%;top:16px", "left:20px;bottom:20px")
        )
        styles = "".join(f'<link rel="stylesheet" href="{BASE}/{style}">' for style in look.styles)
        colours = (
            f":root{{--s:{look.surface};--i:{look.ink};--b:{look.border};--p:{look.primary};--g:{look.background}}}"
        )
        theme_name = (
            f' data-bs-theme="{"dark" if look.dark else "light"}" data-theme="{"dark" if look.dark else "light"}"'
        )
        script = source_of("app.js")
        return (
            f'<!doctype html><html lang="en"{theme_name}><head><meta charset="utf-8"><title>{e(self.words.company())}</title>{styles}'
            f"<style>{looks.own_css(look, rng)}{CSS}{colours}body{{background:var(--g);color:var(--i)}}</style></head><body>{body}{''.join(self.dialogs)}"
            f'<div id="toasts" style="{corner}"></div><script>{script}</script><script>app.show("{first}")</script></body></html>'
        )


@cache
def source_of(name: str) -> str:
    """The text of a script that comes with this package."""
    return resources.files(_SCRIPTS).joinpath(name).read_text("utf-8")


def app_page(seed: int, packages: Path, width: int) -> str:
    """The HTML of the made-up product number `seed`; style sheets are linked below `/packages`."""
    return _App(seed, packages, width).page()
