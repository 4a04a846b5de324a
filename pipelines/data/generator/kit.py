"""Components of generated pages, written in the markup of the chosen framework."""

import random
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path

from watersmeet.pipelines.data.generator import pictures
from watersmeet.pipelines.data.generator.looks import Look
from watersmeet.pipelines.data.generator.words import BUTTONS, CHECKS, LABELS, TAGS, Words

TONES = ("primary", "secondary", "success", "danger", "warning", "info")
TONE_COLORS = {
    "primary": "#4e73df",
    "secondary": "#858796",
    "success": "#1cc88a",
    "danger": "#e74a3b",
    "warning": "#f6c23e",
    "info": "#36b9cc",
}
ICONS = (
    "house gear person people bell envelope search cart star heart calendar folder file-earmark bar-chart graph-up table "
    "chat lock key trash pencil download upload plus check x list grid phone geo-alt clock tag credit-card bag box shield "
    "globe camera image music-note play printer link share flag book bookmark cloud eye filter"
).split()
_FA = {
    "house": "home", "gear": "cog", "person": "user", "people": "users", "cart": "shopping-cart", "graph-up": "chart-line",
    "bar-chart": "chart-bar", "file-earmark": "file", "chat": "comments", "geo-alt": "map-marker-alt", "pencil": "pen",
    "x": "times", "grid": "th", "bag": "shopping-bag", "shield": "shield-alt", "music-note": "music", "list": "bars",
}  # fmt: skip
_LUCIDE = {
    "gear": "settings", "person": "user", "people": "users", "envelope": "mail", "cart": "shopping-cart", "file-earmark": "file",
    "bar-chart": "chart-column", "graph-up": "trending-up", "chat": "message-circle", "trash": "trash-2", "grid": "layout-grid", "geo-alt": "map-pin",
    "bag": "shopping-bag", "music-note": "music", "share": "share-2", "globe": "globe", "table": "table",
}  # fmt: skip


@cache
def _lucide(base: str, name: str) -> str:
    path = Path(base) / "lucide-static" / "icons" / f"{_LUCIDE.get(name, name)}.svg"
    if not path.is_file():
        return '<svg width="24" height="24" viewBox="0 0 24 24"><circle cx="12" cy="12" r="9" fill="none" stroke="currentColor" stroke-width="2"/></svg>'
    text = path.read_text("utf-8")
    return text[text.index("<svg") :].replace("\n", " ").strip()


class Kit:
    """Makes components. `packages` is the folder of unpacked packages (icons are read from it), `look.base` its URL."""

    def __init__(self, rng: random.Random, look: Look, words: Words, packages: Path) -> None:
        self.rng, self.look, self.words, self.packages = rng, look, words, packages
        self.family = "bootstrap" if look.framework in ("bootstrap", "adminkit") else look.framework
        self.input_style = rng.randrange(4)  # label above, label beside, placeholder only, floating look
        self.image_base = look.base.rsplit("/", 1)[0] + "/pictures" if "/" in look.base else "pictures"
        self.shared: dict[str, str] | None = None  # parts that all pages of a site have, once it is one

    def once(self, name: str, make: Callable[[], str]) -> str:
        """What `make` gives; on a site what it gave for the first page."""
        if self.shared is None:
            return make()
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def tone(self) -> str:
        return self.rng.choice(TONES)

    # pictures
    def icon(self, name: str | None = None, size: int | None = None, tint: str | None = None) -> str:
        name = name or self.rng.choice(ICONS)
        style = (f"font-size:{size}px;" if size else "") + (f"color:{tint};" if tint else "")
        style = f' style="{style}"' if style else ""
        if self.look.icons == "bi":
            return f'<i class="bi bi-{name}"{style}></i>'
        if self.look.icons == "fa":
            return f'<i class="fas fa-{_FA.get(name, name)}"{style}></i>'
        if self.look.icons == "svg":
            svg = _lucide(str(self.packages), name)
            return svg.replace('width="24"', f'width="{size or 18}"').replace('height="24"', f'height="{size or 18}"')
        return ""

    def avatar(self, size: int = 40) -> str:
        if self.chance(0.25):
            letters = self.words.name()[:1].upper() + self.rng.choice("ABCDEKLMST")
            return f'<span class="w-chip" style="width:{size}px;height:{size}px;border-radius:50%;background:{pictures.color(self.rng)};color:#fff;font-size:{size * 2 // 5}px">{letters}</span>'
        return f'<img class="{self.rng.choice(("w-round", "w-round", ""))}" width="{size}" height="{size}" alt="" src="{self.image_base}/portrait{self.rng.randrange(pictures.PORTRAITS)}.jpg">'

    def photo(self, height: int | None = None, width: str = "100%", radius: int = 0) -> str:
        height = height or self.rng.choice((120, 150, 180, 200, 240))
        return f'<img class="w-cover" alt="" style="height:{height}px;width:{width};border-radius:{radius}px" src="{self.image_base}/photo{self.rng.randrange(pictures.PHOTOS)}.jpg">'

    def logo(self, size: int = 28) -> str:
        return pictures.logo(self.rng, size, self.look.primary)

    def chart(self, width: int, height: int) -> str:
        labels = (
            "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
            if self.chance(0.6)
            else [self.words.word() for _ in range(6)]
        )
        ink = self.look.ink if self.look.own or self.look.dark else "#444444"
        return pictures.chart(
            self.rng, width, height, self.look.primary if self.chance(0.6) else pictures.color(self.rng), ink, labels
        )

    # small components
    def button(self, text: str | None = None, kind: str | None = None, icon: bool | None = None) -> str:
        text = escape(text or self.words.pick(BUTTONS))
        kind = kind or self.rng.choice(("main", "main", "plain", "line", "text"))
        glyph = self.icon() + " " if (icon if icon is not None else self.chance(0.2)) else ""
        tag = "a href='#'" if self.chance(0.35) else "button type='button'"
        end = (tag[0] == "a" and "a") or "button"
        size = self.rng.choice(("", "", "sm", "lg"))
        if self.family == "bootstrap":
            tone = "primary" if kind == "main" and self.chance(0.6) else self.tone()
            style = {
                "main": f"btn-{tone}",
                "plain": "btn-secondary",
                "line": f"btn-outline-{tone}",
                "text": "btn-link",
            }[kind]
            cls = f"btn {style}" + (f" btn-{size}" if size else "")
        elif self.family == "bulma":
            style = {
                "main": f"is-{self.rng.choice(('primary', 'link', 'success', 'danger', 'info'))}",
                "plain": "",
                "line": "is-outlined is-link",
                "text": "is-text",
            }[kind]
            cls = f"button {style}" + {"": "", "sm": " is-small", "lg": " is-medium"}[size]
        elif self.family == "pico":
            cls = {"main": "w-btn", "plain": "w-btn secondary", "line": "w-btn outline", "text": "w-btn contrast"}[kind]
            tag = tag.replace("a href", "a role='button' href")
        elif self.family == "milligram":
            cls = {
                "main": "button",
                "plain": "button button-black",
                "line": "button button-outline",
                "text": "button button-clear",
            }[kind]
        else:
            cls = {
                "main": "w-btn w-main-btn",
                "plain": "w-btn",
                "line": "w-btn w-line-btn",
                "text": "w-btn w-text-btn",
            }[kind]
            tag = tag if self.family == "own" else "button type='button'"
            end = end if self.family == "own" else "button"
        return f'<{tag} class="{cls}">{glyph}{text}</{end}>'

    def badge(self, text: str | None = None) -> str:
        text = escape(text or self.words.pick(TAGS))
        tone = self.tone()
        if self.family == "bootstrap":
            return f'<span class="badge {self.rng.choice(("rounded-pill ", ""))}{"text-bg-" if self.chance(0.5) else "bg-"}{tone}">{text}</span>'
        if self.family == "bulma":
            return f'<span class="tag is-{tone if tone != "secondary" else "light"}{self.rng.choice((" is-light", "", " is-rounded"))}">{text}</span>'
        return f'<span class="w-badge" style="background:{TONE_COLORS[tone]}">{text}</span>'

    def progress(self, value: int | None = None) -> str:
        value = value or self.rng.randint(5, 98)
        if self.family == "bootstrap":
            text = f"{value}%" if self.chance(0.2) else ""
            return f'<div class="progress" style="height:{16 if text else self.rng.choice((4, 6, 8, 12))}px"><div class="progress-bar bg-{self.tone()}" style="width:{value}%">{text}</div></div>'
        if self.family == "bulma":
            return f'<progress class="progress is-{self.rng.choice(("primary", "info", "success", "link", "danger"))} is-small" value="{value}" max="100"></progress>'
        if self.family in ("pico", "water"):
            return f'<progress value="{value}" max="100"></progress>'
        tint = "" if self.chance(0.5) else f"background:{TONE_COLORS[self.tone()]}"
        bar = "" if self.family == "own" else "height:8px;background:#ddd;"
        inner = "" if self.family == "own" else f"height:8px;background:{self.look.primary};"
        return f'<div class="w-progress" style="{bar}"><div style="{inner}{tint};width:{value}%"></div></div>'

    def alert(self) -> str:
        text = escape(self.words.sentence(4, 14))
        if self.family == "bootstrap":
            return f'<div class="alert alert-{self.tone()}" role="alert">{text}</div>'
        if self.family == "bulma":
            return f'<div class="notification is-{self.rng.choice(("primary", "info", "warning", "danger is-light", "link is-light"))}">{text}</div>'
        tint = TONE_COLORS[self.tone()]
        return f'<div class="w-alert" style="padding:12px 16px;{self.rng.choice((f"background:{tint}22;", f"border:1px solid {tint};", f"border-left:4px solid {tint};background:{tint}18;"))}">{text}</div>'

    def card(self, body: str, head: str = "", style: str = "", foot: str = "", pad: bool = True) -> str:
        style = f' style="{style}"' if style else ""
        if self.family == "bootstrap":
            h = (
                f'<div class="card-header">{head}</div>'
                if head and self.chance(0.7)
                else f'<h5 class="card-title m-0 pt-3 px-3">{head}</h5>'
                if head
                else ""
            )
            f = f'<div class="card-footer">{foot}</div>' if foot else ""
            shadow = " shadow" if self.look.shadow != "none" else ""
            return (
                f'<div class="card{shadow}"{style}>{h}<div class="{"card-body" if pad else ""}">{body}</div>{f}</div>'
            )
        if self.family == "bulma":
            if self.chance(0.4) and pad:
                return f'<div class="box m-0"{style}>{f"<h4 class=title-is-5><b>{head}</b></h4>" if head else ""}{body}{foot}</div>'
            h = f'<header class="card-header"><p class="card-header-title">{head}</p></header>' if head else ""
            f = f'<footer class="card-footer"><div class="card-footer-item">{foot}</div></footer>' if foot else ""
            return f'<div class="card m-0"{style}>{h}<div class="{"card-content" if pad else ""}">{body}</div>{f}</div>'
        if self.family == "pico":
            return f"<article{style}>{f'<header>{head}</header>' if head else ''}{body}{f'<footer>{foot}</footer>' if foot else ''}</article>"
        tag = self.rng.choice(("div", "div", "div", "article"))
        h = f'<div class="w-head">{head}</div>' if head else ""
        f = f'<div class="w-head">{foot}</div>' if foot else ""
        return f'<{tag} class="w-card"{style}>{h}<div class="{"w-body" if pad else ""}">{body}</div>{f}</{tag}>'

    # forms
    def field(self, label: str | None = None, value: str | None = None) -> str:
        rng = self.rng
        label = label or self.words.pick(LABELS)
        low = label.lower()
        kind = "password" if "password" in low else "email" if "email" in low else "text"
        if value is None:
            value = rng.choice(("", "", self.words.email() if kind == "email" else self.words.title(1, 3)))
        hint = rng.choice(("", label, f"Enter {low}", self.words.title(1, 3)))
        if self.input_style == 2:
            hint = label
        which = rng.choices(("input", "select", "textarea"), (8, 2, 1))[0]
        if kind != "text":
            which = "input"
        cls = {
            "bootstrap": "form-select" if which == "select" else "form-control",
            "bulma": "textarea" if which == "textarea" else "input",
            "own": "w-input",
        }.get(self.family, "")
        if which == "input":
            control = f'<input type="{kind}" class="{cls}" value="{escape(value)}" placeholder="{escape(hint)}">'
        elif which == "select":
            options = "".join(f"<option>{escape(self.words.title(1, 2))}</option>" for _ in range(3))
            control = f'<select class="{cls}">{options}</select>'
            if self.family == "bulma":
                control = f'<div class="select is-fullwidth"><select>{options}</select></div>'
        else:
            control = f'<textarea class="{cls}" rows="{rng.randint(2, 4)}" placeholder="{escape(hint)}">{escape(value)}</textarea>'
        note = f'<small class="w-mute">{escape(self.words.sentence(3, 8))}</small>' if self.chance(0.12) else ""
        label = escape(label)
        if self.input_style == 2:
            return f'<div class="mb-3" style="margin-bottom:14px">{control}{note}</div>'
        if self.input_style == 1 and not self.look.narrow:
            return f'<div style="display:grid;grid-template-columns:160px 1fr;gap:12px;align-items:center;margin-bottom:12px"><label>{label}</label><div>{control}{note}</div></div>'
        cls = {"bootstrap": "form-label", "bulma": "label"}.get(self.family, "")
        return f'<div class="mb-3 field" style="margin-bottom:14px"><label class="{cls}">{label}</label>{control}{note}</div>'

    def check(self, text: str | None = None, kind: str | None = None) -> str:
        kind = kind or self.rng.choice(("checkbox", "checkbox", "radio", "switch"))
        text = escape(text or self.words.pick(CHECKS))
        on = " checked" if self.chance(0.5) else ""
        if self.family == "bootstrap":
            return f'<div class="form-check{" form-switch" if kind == "switch" else ""}"><input class="form-check-input" type="{"radio" if kind == "radio" else "checkbox"}"{on}><label class="form-check-label">{text}</label></div>'
        if self.family == "own" and kind == "switch":
            return f'<div class="w-tight"><span role="switch" class="w-switch{" w-yes" if on else ""}"></span><span>{text}</span></div>'
        role = " role=switch" if self.family == "pico" and kind == "switch" else ""
        cls = ' class="checkbox"' if self.family == "bulma" else ""
        return f'<div style="margin-bottom:6px"><label{cls} style="display:inline;font-weight:400"><input type="{"radio" if kind == "radio" else "checkbox"}"{role}{on}> {text}</label></div>'

    def search(self) -> str:
        hint = escape(self.words.pick(["Search", "Search for...", "Search…", "Find something", "Type to search"]))
        cls = {"bootstrap": "form-control", "bulma": "input", "own": "w-input"}.get(self.family, "")
        box = f'<input type="search" class="{cls}" placeholder="{hint}" style="margin:0;width:{self.rng.choice((160, 200, 240, 300)) if not self.look.narrow else 150}px">'
        if self.chance(0.5):
            glyph = self.icon("search") or escape(self.words.pick(["Search", "Go"]))
            if self.family == "bootstrap":
                return f'<form class="input-group" style="width:auto">{box}<button class="btn btn-primary" type="button">{glyph}</button></form>'
            return f'<form class="w-tight" style="gap:0;margin:0">{box}{self.button(kind="main") if self.chance(0.4) else ""}</form>'
        return f'<form style="margin:0" role="search">{box}</form>'

    # larger components
    def table(self, columns: list[str], rows: list[list[str]]) -> str:
        cls = {
            "bootstrap": "table"
            + self.rng.choice(
                (
                    "",
                    " table-striped",
                    " table-bordered",
                    " table-hover",
                    " table-sm",
                    " table-dark" if self.look.dark else "",
                )
            )
            + " mb-0",
            "bulma": "table is-fullwidth" + self.rng.choice(("", " is-striped", " is-bordered", " is-narrow")),
        }.get(self.family, "w-table")
        head = "".join(f"<th>{c}</th>" for c in columns)
        body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
        foot = f"<tfoot><tr>{head}</tr></tfoot>" if self.chance(0.1) else ""
        return f'<table class="{cls}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>'

    def tabs(self, names: list[str]) -> str:
        if self.family == "bootstrap":
            style = self.rng.choice(("nav-tabs", "nav-pills", "nav-underline"))
            items = "".join(
                f'<li class="nav-item"><a class="nav-link{" active" if i == 0 else ""}" href="#">{escape(n)}</a></li>'
                for i, n in enumerate(names)
            )
            return f'<ul class="nav {style} mb-3">{items}</ul>'
        if self.family == "bulma":
            items = "".join(
                f'<li class="{"is-active" if i == 0 else ""}"><a>{escape(n)}</a></li>' for i, n in enumerate(names)
            )
            return f'<div class="tabs{self.rng.choice(("", " is-boxed", " is-toggle"))}"><ul>{items}</ul></div>'
        items = "".join(f'<a href="#" class="{"w-on" if i == 0 else ""}">{escape(n)}</a>' for i, n in enumerate(names))
        extra = (
            ""
            if self.family == "own"
            else ' style="display:flex;gap:18px;border-bottom:1px solid #8884;margin-bottom:12px;padding-bottom:6px"'
        )
        return f'<nav class="w-tabs"{extra}>{items}</nav>'

    def crumbs(self, names: list[str]) -> str:
        if self.family == "bootstrap":
            items = "".join(f'<li class="breadcrumb-item"><a href="#">{escape(n)}</a></li>' for n in names[:-1])
            return f'<nav><ol class="breadcrumb">{items}<li class="breadcrumb-item active">{escape(names[-1])}</li></ol></nav>'
        if self.family == "bulma":
            return (
                '<nav class="breadcrumb"><ul>' + "".join(f"<li><a>{escape(n)}</a></li>" for n in names) + "</ul></nav>"
            )
        sep = self.rng.choice(("/", "›", "»", "-"))
        inner = f"<li>{sep}</li>".join(f'<li><a href="#">{escape(n)}</a></li>' for n in names)
        return f'<ol class="w-crumbs" style="display:flex;gap:8px;list-style:none;padding:0">{inner}</ol>'

    def pages(self) -> str:
        names = (
            ["Previous", *[str(i) for i in range(1, self.rng.randint(3, 6))], "Next"]
            if self.chance(0.6)
            else ["‹", "1", "2", "3", "›"]
        )
        if self.family == "bootstrap":
            return (
                '<ul class="pagination">'
                + "".join(
                    f'<li class="page-item{" active" if n == "1" else ""}"><a class="page-link" href="#">{n}</a></li>'
                    for n in names
                )
                + "</ul>"
            )
        if self.family == "bulma":
            return (
                '<nav class="pagination"><ul class="pagination-list">'
                + "".join(
                    f'<li><a class="pagination-link{" is-current" if n == "1" else ""}">{n}</a></li>' for n in names
                )
                + "</ul></nav>"
            )
        return (
            '<ul class="w-pages" style="display:flex;gap:6px;list-style:none;padding:0">'
            + "".join(f'<li><a href="#">{n}</a></li>' for n in names)
            + "</ul>"
        )
