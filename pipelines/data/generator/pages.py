"""Kinds of generated pages. `generate(seed, ...)` is pure: the same seed gives the same bytes."""

import random
from collections.abc import Callable
from html import escape as e
from pathlib import Path

from watersmeet.pipelines.data.generator import blocks as b
from watersmeet.pipelines.data.generator import looks
from watersmeet.pipelines.data.generator.kit import TONE_COLORS, TONES, Kit
from watersmeet.pipelines.data.generator.words import BUTTONS, HEADS, LANGUAGES, NAV, RTL_LANGUAGES, STATS, TAGS, Words


def _app(kit: Kit, body: str, bar: bool = True) -> str:
    """The frame of an application: side menu, bar, content."""
    top = b.topbar(kit, brand=kit.look.narrow, links=False) if bar else ""
    foot = b.footer(kit) if kit.chance(0.2) else ""
    main = f'<main class="w-pad">{body}</main>'
    if kit.look.narrow:
        return f"{top}{main}{foot}"
    if kit.chance(0.2):
        return f'{b.topbar(kit)}<div class="w-app">{b.sidebar(kit)}<div class="w-main">{main}{foot}</div></div>'
    return f'<div class="w-app">{b.sidebar(kit)}<div class="w-main">{top}{main}{foot}</div></div>'


def _title(kit: Kit) -> str:
    w = kit.words
    name = e(w.pick(NAV) if kit.chance(0.6) else w.title(1, 4))
    crumbs = kit.crumbs([w.pick(NAV), name]) if kit.chance(0.3) else ""
    act = kit.button(kind="main") if kit.chance(0.5) else ""
    text = f'<p class="w-mute" style="margin:0 0 12px">{e(w.sentence(4, 12))}</p>' if kit.chance(0.25) else ""
    tag = kit.rng.choice(("h1", "h1", "h2", "h3"))
    return f'<div class="w-between" style="margin-bottom:{kit.look.gap}px"><{tag} style="margin:0">{name}</{tag}>{act}</div>{crumbs}{text}'


def dashboard(kit: Kit) -> str:
    rng = kit.rng
    parts = [_title(kit) if kit.chance(0.85) else "", b.stats(kit)]
    makers: list[Callable[[], str]] = [
        lambda: b.split(kit, b.chart_card(kit, 560), b.chart_card(kit, 260) if kit.chance(0.5) else b.list_card(kit)),
        lambda: b.split(kit, b.progress_card(kit), b.text_card(kit), "1fr 1fr"),
        lambda: b.table_card(kit),
        lambda: b.grid(kit, [b.chart_card(kit, 270) for _ in range(3)], 3),
        lambda: b.split(kit, b.table_card(kit, columns=3), b.list_card(kit), rng.choice(("1fr 1fr", "2fr 1fr"))),
        lambda: b.grid(kit, [b.list_card(kit), b.progress_card(kit), b.list_card(kit)], 3),
        lambda: b.stats(kit),
        lambda: b.grid(
            kit,
            [
                kit.card(
                    f'<div style="color:#fff">{t.title()}<div class="w-small">{c}</div></div>', style=f"background:{c}"
                )
                for t, c in TONE_COLORS.items()
            ],
            2,
        ),
        lambda: kit.alert(),
    ]
    parts += [rng.choice(makers)() for _ in range(rng.randint(2, 4))]
    return _app(kit, "".join(parts))


def tables(kit: Kit) -> str:
    body = _title(kit) + "".join(
        f'<div style="margin-bottom:20px">{b.table_card(kit, kit.rng.randint(4, 14))}</div>'
        for _ in range(kit.rng.randint(1, 2))
    )
    return _app(kit, body)


def cards(kit: Kit) -> str:
    rng = kit.rng
    makers = [b.text_card, b.list_card, b.progress_card, b.form_card, b.quote]
    body = _title(kit)
    for _ in range(rng.randint(2, 3)):
        n = rng.choice((2, 2, 3, 4))
        body += b.grid(kit, [rng.choice(makers)(kit) for _ in range(n)], min(n, 3))
    return _app(kit, body)


def components(kit: Kit) -> str:
    """Rows of buttons, alerts, badges and the like, as on a framework's own pages."""
    rng, w = kit.rng, kit.words
    makers: list[Callable[[], str]] = [
        lambda: "<div class='w-row' style='gap:8px'>" + "".join(kit.button(icon=rng.random() < 0.3) for _ in range(rng.randint(4, 9))) + "</div>",
        lambda: "".join(kit.alert() for _ in range(rng.randint(1, 4))),
        lambda: b.chips(kit),
        lambda: "".join(f"<div style='margin-bottom:10px'>{kit.progress()}</div>" for _ in range(4)),
        lambda: kit.tabs(rng.sample(NAV, 4)) + f"<p>{e(w.paragraph(1, 2))}</p>",
        lambda: kit.pages() + kit.crumbs(rng.sample(NAV, 3)),
        lambda: "<div class='w-row'>" + "".join(kit.check() for _ in range(5)) + "</div>",
        lambda: "<div class='w-row'>" + "".join(kit.avatar(rng.choice((32, 40, 56))) for _ in range(6)) + "</div>",
        lambda: "".join(f"<h{i}>{e(w.title(2, 4))}</h{i}>" for i in range(1, 5)),
        lambda: b.grid(kit, [kit.field() for _ in range(4)], 2),
        lambda: b.code(kit),
        lambda: b.faq(kit),
    ]  # fmt: skip
    out = _title(kit)
    boxed = kit.chance(0.6)
    pieces = [rng.choice(makers)() for _ in range(rng.randint(4, 8))]
    if boxed and kit.chance(0.5):
        out += b.grid(kit, [kit.card(p, head=e(w.pick(HEADS))) for p in pieces], 2)
    else:
        out += "".join(
            f'<div style="margin-bottom:18px">{kit.card(p, head=e(w.pick(HEADS)))}</div>'
            if boxed
            else f"<h3>{e(w.title(1, 3))}</h3>{p}<br>"
            for p in pieces
        )
    return _app(kit, out) if kit.chance(0.5) else f'{b.topbar(kit)}<main class="w-wrap w-pad">{out}</main>'


def login(kit: Kit) -> str:
    rng, w = kit.rng, kit.words
    kind = rng.choice(
        (
            ["Email address", "Password"],
            ["Username", "Password"],
            ["First name", "Last name", "Email address", "Password", "Confirm password"],
            ["Email address"],
        )
    )
    fields = "".join(
        kit.field(label if w.language == "en" else None, "" if kit.chance(0.6) else None) for label in kind
    )
    top = f'<div class="w-center">{kit.logo(44) if kit.chance(0.6) else ""}<h2>{e(w.pick(["Welcome Back!", "Sign in", "Log in to your account", "Create an Account!", "Forgot your password?", "Please sign in"]))}</h2>{f"<p class=w-mute>{e(w.sentence(4, 10))}</p>" if kit.chance(0.5) else ""}</div>'
    wide = "width:100%;display:block" if kit.chance(0.6) else ""
    button = kit.button(
        rng.choice(("Log in", "Sign in", "Continue", "Register Account")) if w.language == "en" else None, "main"
    ).replace(' class="', f' style="{wide}" class="', 1)
    other = ""
    if kit.chance(0.45):
        other = f'<div class="w-center w-mute" style="margin:12px 0">or</div><div class="w-col">{"".join(kit.button(f"Continue with {w.word().capitalize()}", "line") for _ in range(2))}</div>'
    links = f'<div class="w-center w-small" style="margin-top:14px"><a href="#">{e(w.pick(["Forgot Password?", "Need an account? Sign up!"]))}</a>{"<br><a href=#>" + e(w.pick(["Create an Account!", "Already have an account?"])) + "</a>" if kit.chance(0.5) else ""}</div>'
    row = (
        f'<div class="w-between" style="margin-bottom:12px">{kit.check("Remember me" if w.language == "en" else None, "checkbox")}{"<a href=# class=w-small>Forgot?</a>" if kit.chance(0.4) else ""}</div>'
        if kit.chance(0.6)
        else ""
    )
    form = f"{top}<form>{fields}{row}{button}{other}</form>{links}"
    width = rng.choice((340, 380, 420, 480))
    tint = rng.choice((kit.look.primary, "transparent", f"linear-gradient(160deg,{kit.look.primary},#223)", "#e9ecef"))
    if kit.chance(0.35) and not kit.look.narrow:
        picture = kit.photo(757, "100%")
        return f'<div style="display:grid;grid-template-columns:1fr 1fr;min-height:100vh">{picture if kit.chance(0.5) else ""}<div style="display:flex;align-items:center;justify-content:center"><div style="width:{width}px">{form}</div></div>{picture if kit.chance(0.2) else ""}</div>'
    bar = b.topbar(kit) if kit.chance(0.25) else ""
    inner = kit.card(f'<div style="padding:{rng.choice((4, 12, 24))}px">{form}</div>') if kit.chance(0.8) else form
    return f'{bar}<div style="min-height:{rng.choice(("100vh", "80vh"))};display:flex;align-items:center;justify-content:center;background:{tint}"><div style="width:{width}px;max-width:92vw">{inner}</div></div>'


def forms(kit: Kit) -> str:
    body = _title(kit)
    if kit.chance(0.5):
        body += b.split(
            kit,
            b.form_card(kit, kit.rng.randint(4, 9)),
            b.form_card(kit, 3, False) if kit.chance(0.5) else b.list_card(kit),
            kit.rng.choice(("1fr 1fr", "2fr 1fr")),
        )
    else:
        body += b.form_card(kit, kit.rng.randint(5, 12)) + "<br>" + (b.form_card(kit, 3) if kit.chance(0.4) else "")
    return (
        _app(kit, body)
        if kit.chance(0.6)
        else f'{b.topbar(kit)}<main class="w-wrap w-pad">{body}</main>{b.footer(kit)}'
    )


def settings(kit: Kit) -> str:
    rng, w = kit.rng, kit.words
    links = "".join(
        f'<li><a href="#">{kit.icon() if kit.look.icons != "none" else ""} {e(n)}</a></li>'
        for n in rng.sample(NAV, rng.randint(4, 8))
    )
    menu = (
        kit.card(f'<ul class="w-flat w-line">{links}</ul>')
        if kit.chance(0.6)
        else f'<ul class="w-flat w-col">{links}</ul>'
    )
    rows = "".join(
        f'<div class="w-between"><div><b>{e(w.title(2, 4))}</b><div class="w-mute w-small">{e(w.sentence(4, 12))}</div></div>{kit.check(" ", "switch") if kit.chance(0.6) else kit.button(kind="line", icon=False)}</div>'
        for _ in range(rng.randint(3, 7))
    )
    panel = f"{kit.tabs(rng.sample(NAV, 4)) if kit.chance(0.3) else ''}{b.form_card(kit)}<br>{kit.card(f'<div class=w-line>{rows}</div>', head=b.head(kit))}"
    return _app(kit, _title(kit) + b.split(kit, f"<div>{menu}</div>", f"<div>{panel}</div>", "220px 1fr"))


def marketing(kit: Kit) -> str:
    rng, w = kit.rng, kit.words

    def section(inner: str, tint: bool) -> str:
        head = f'<h2 class="{"w-center" if kit.chance(0.6) else ""}">{e(w.title(2, 6))}</h2>' + (
            f'<p class="w-mute {"w-center" if kit.chance(0.6) else ""}">{e(w.sentence())}</p>'
            if kit.chance(0.5)
            else ""
        )
        return f'<section class="w-section" style="{"background:rgba(127,127,127,.09)" if tint else ""}"><div class="w-wrap">{head if kit.chance(0.85) else ""}{inner}</div></section>'

    makers: list[Callable[[], str]] = [
        lambda: b.features(kit),
        lambda: b.features(kit),
        lambda: b.prices(kit),
        lambda: b.grid(kit, [b.picture_card(kit, rng.choice(("post", "person"))) for _ in range(3)], 3),
        lambda: b.grid(kit, [b.quote(kit) for _ in range(3)], 3),
        lambda: b.faq(kit),
        lambda: b.split(kit, f"<div><h3>{e(w.title())}</h3><p>{e(w.paragraph())}</p>{kit.button()}</div>", f"<div>{kit.photo(rng.choice((220, 300)), radius=kit.look.radius)}</div>", "1fr 1fr"),
        lambda: b.gallery(kit),
        lambda: b.grid(kit, [f'<div class="w-center"><div class="w-big" style="color:{kit.look.primary}">{w.number()}</div><div class="w-mute">{e(w.pick(STATS))}</div></div>' for _ in range(4)], 4),
        lambda: f'<div class="w-center"><form class="w-tight" style="justify-content:center;max-width:480px;margin:auto">{kit.field("Email address", "")}{kit.button(kind="main")}</form></div>',
    ]  # fmt: skip
    body = "".join(section(rng.choice(makers)(), i % 2 == 1 and kit.chance(0.7)) for i in range(rng.randint(2, 5)))
    return f"{b.topbar(kit, links=True)}<main>{b.hero(kit)}{body}</main>{b.footer(kit)}"


def pricing(kit: Kit) -> str:
    w = kit.words
    return f'{b.topbar(kit)}<main class="w-wrap w-section"><div class="w-center"><h1>{e(w.pick(["Pricing", "Choose your plan", "Plans and pricing"]))}</h1><p class="w-mute">{e(w.sentence())}</p></div>{b.prices(kit)}{b.table_card(kit, 6, 4) if kit.chance(0.4) else b.faq(kit)}</main>{b.footer(kit)}'


def article(kit: Kit) -> str:
    w = kit.words
    who = (
        f'<div class="w-tight">{kit.avatar(40)}<div><b>{e(w.name())}</b><div class="w-mute w-small">{e(w.date())} · {kit.rng.randint(2, 19)} min</div></div></div>'
        if kit.chance(0.6)
        else f'<p class="w-mute">{e(w.date())}</p>'
    )
    body = f"<article><h1>{e(w.title(4, 10))}</h1>{who}{kit.photo(kit.rng.choice((200, 300))) if kit.chance(0.5) else ''}{b.prose(kit, kit.rng.randint(6, 14))}</article>"
    if kit.chance(0.5):
        side = f"<aside>{b.list_card(kit)}<br>{b.chips(kit)}{b.text_card(kit)}</aside>"
        body = b.split(kit, body, side, kit.rng.choice(("3fr 1fr", "2fr 1fr")))
    return f'{b.topbar(kit)}<main class="w-wrap w-pad">{body}</main>{b.footer(kit)}'


def blog(kit: Kit) -> str:
    w = kit.words
    if kit.chance(0.5):
        items = b.grid(
            kit, [b.picture_card(kit, "post") for _ in range(kit.rng.choice((4, 6)))], kit.rng.choice((2, 3))
        )
    else:
        items = "".join(
            f'<article style="margin-bottom:24px"><h2><a href="#">{e(w.title(3, 9))}</a></h2><p class="w-mute w-small">{e(w.date())} · {e(w.name())}</p><p>{e(w.paragraph(1, 3))}</p><a href="#">{e(w.pick(["Read more", "Continue reading"]))}</a></article>'
            for _ in range(5)
        )
    return f'{b.topbar(kit)}<main class="w-wrap w-pad"><h1>{e(w.title(1, 4))}</h1>{b.split(kit, f"<div>{items}</div>", f"<aside>{b.list_card(kit)}</aside>") if kit.chance(0.5) else items}{kit.pages()}</main>{b.footer(kit)}'


def docs(kit: Kit) -> str:
    rng, w = kit.rng, kit.words
    menu = ""
    for _ in range(rng.randint(2, 5)):
        links = "".join(f'<li><a href="#">{e(w.title(1, 3))}</a></li>' for _ in range(rng.randint(3, 7)))
        menu += f'<div class="w-cap">{e(w.title(1, 2))}</div><ul>{links}</ul>'
    body = f"{kit.crumbs(rng.sample(NAV, 3)) if kit.chance(0.4) else ''}<h1>{e(w.title(1, 5))}</h1>{b.prose(kit, rng.randint(6, 14))}"
    toc = ""
    if kit.chance(0.4) and not kit.look.narrow:
        toc = (
            '<aside style="width:180px;flex:none" class="w-small"><b>'
            + e(w.pick(["On this page", "Contents"]))
            + "</b><ul class='w-flat w-col'>"
            + "".join(f'<li><a href="#">{e(w.title(1, 4))}</a></li>' for _ in range(5))
            + "</ul></aside>"
        )
    side = "" if kit.look.narrow else f'<nav class="w-side">{menu}</nav>'
    return f'{b.topbar(kit, links=True)}<div class="w-app">{side}<main class="w-main" style="padding:{kit.look.gap}px 24px;max-width:820px">{body}</main>{toc}</div>'


def shop(kit: Kit) -> str:
    w = kit.words
    items = b.grid(
        kit, [b.picture_card(kit, "product") for _ in range(kit.rng.choice((6, 8, 9)))], kit.rng.choice((3, 4))
    )
    if kit.chance(0.5):
        side = f"<aside><h4>{e(w.title(1, 2))}</h4>{''.join(kit.check(w.title(1, 2), 'checkbox') for _ in range(5))}<h4>{e(w.title(1, 2))}</h4>{''.join(kit.check(w.title(1, 2), 'radio') for _ in range(4))}{kit.button()}</aside>"
        items = b.split(kit, side, f"<div>{items}</div>", "200px 1fr")
    bar = f'<div class="w-between" style="margin-bottom:16px"><h2 style="margin:0">{e(w.title(1, 3))}</h2><span class="w-mute">{kit.rng.randint(3, 400)} {e(w.word())}</span></div>'
    return f'{b.topbar(kit, links=True)}<main class="w-wrap w-pad">{bar}{items}{kit.pages()}</main>{b.footer(kit)}'


def product(kit: Kit) -> str:
    w = kit.words
    info = f'<div>{kit.crumbs(kit.rng.sample(NAV, 3))}<h1>{e(w.title(2, 5))}</h1><div style="color:#f6b100">★★★★☆ <a href="#" class="w-small">{kit.rng.randint(3, 900)} reviews</a></div><div class="w-big">{w.money()}</div><p>{e(w.paragraph())}</p>{b.chips(kit)}<div class="w-tight">{kit.button("Add to cart", "main")}{kit.button(kind="line")}</div></div>'
    return f'{b.topbar(kit)}<main class="w-wrap w-pad">{b.split(kit, f"<div>{kit.photo(360)}</div>", info, "1fr 1fr")}{kit.tabs(kit.rng.sample(NAV, 3))}<p>{e(w.paragraph())}</p>{b.table_card(kit, 4, 2)}</main>'


def gallery(kit: Kit) -> str:
    return f'{b.topbar(kit)}<main class="w-wrap w-pad"><h1>{e(kit.words.title(1, 3))}</h1>{b.chips(kit) if kit.chance(0.5) else ""}{b.gallery(kit)}{b.gallery(kit)}</main>{b.footer(kit)}'


def profile(kit: Kit) -> str:
    w = kit.words
    numbers = (
        '<div class="w-row" style="gap:24px;justify-content:center">'
        + "".join(
            f'<div class="w-center"><b>{w.number()}</b><div class="w-mute w-small">{e(w.pick(STATS))}</div></div>'
            for _ in range(3)
        )
        + "</div>"
    )
    cover = kit.photo(160) if kit.chance(0.5) else ""
    who = kit.card(
        f'<div class="w-center">{kit.avatar(96)}<h3>{e(w.name())}</h3><p class="w-mute">{e(w.job()[:40])}</p>{numbers}<div class="w-tight" style="justify-content:center;margin-top:10px">{kit.button("Follow", "main")}{kit.button("Message", "line")}</div></div>'
    )
    right = f"<div>{kit.tabs(kit.rng.sample(NAV, 3)) if kit.chance(0.5) else ''}{b.form_card(kit) if kit.chance(0.5) else b.list_card(kit, 6)}</div>"
    body = cover + b.split(kit, f"<div>{who}<br>{b.list_card(kit)}</div>", right, "1fr 2fr")
    return _app(kit, body) if kit.chance(0.6) else f'{b.topbar(kit)}<main class="w-wrap w-pad">{body}</main>'


def inbox(kit: Kit) -> str:
    w = kit.words
    rows = "".join(
        f'<div class="w-tight" style="gap:12px"><input type="checkbox">{kit.icon("star")}<b style="width:150px;flex:none;overflow:hidden;white-space:nowrap">{e(w.name()[:18])}</b><span style="flex:1;overflow:hidden;white-space:nowrap;text-overflow:ellipsis">{e(w.title(2, 5))} <span class="w-mute">- {e(w.sentence(4, 9))}</span></span><span class="w-small w-mute">{e(w.time())}</span></div>'
        for _ in range(kit.rng.randint(8, 16))
    )
    if kit.look.narrow:
        return _app(kit, b.list_card(kit, 8))
    tools = f'<div class="w-tight" style="margin-bottom:10px">{"".join(kit.button(kind="plain", icon=False) for _ in range(3))}<span class="w-push w-mute">1-{kit.rng.randint(10, 50)} of {kit.rng.randint(50, 900)}</span></div>'
    return _app(kit, tools + kit.card(f'<div class="w-line">{rows}</div>'))


def chat(kit: Kit) -> str:
    w = kit.words
    bubbles = ""
    for _ in range(kit.rng.randint(5, 9)):
        mine = kit.chance(0.5)
        tint = (
            f"background:{kit.look.primary};color:#fff;margin-inline-start:auto"
            if mine
            else "background:rgba(127,127,127,.18)"
        )
        bubbles += f'<div class="w-tight" style="margin-bottom:10px">{"" if mine else kit.avatar(32)}<div class="w-bubble" style="{tint}">{e(w.sentence(3, 14))}</div></div>'
    box = f'<div class="w-tight">{kit.field("Message", "")}{kit.button("Send", "main")}</div>'
    return _app(kit, b.split(kit, b.list_card(kit, 7), kit.card(bubbles + box, head=e(w.name())), "1fr 2fr"))


def kanban(kit: Kit) -> str:
    w = kit.words
    columns = []
    for _ in range(4 if not kit.look.narrow else 2):
        tickets = "".join(
            f'<div style="margin-bottom:10px">{kit.card(f"<div>{kit.badge() if kit.chance(0.6) else str()}</div><b>{e(w.title(2, 6))}</b><p class=w-small>{e(w.sentence(4, 10))}</p><div class=w-between>{kit.avatar(26)}<span class=w-small>{e(w.date())}</span></div>")}</div>'
            for _ in range(kit.rng.randint(1, 4))
        )
        columns.append(
            f'<div style="background:rgba(127,127,127,.1);padding:12px;border-radius:{kit.look.radius}px"><div class="w-between"><b>{e(w.pick(TAGS))}</b><span class="w-mute">{kit.rng.randint(1, 12)}</span></div><div style="height:10px"></div>{tickets}{kit.button("Add card", "text")}</div>'
        )
    return _app(kit, _title(kit) + b.grid(kit, columns, 4))


def calendar(kit: Kit) -> str:
    w, rng = kit.words, kit.rng
    days = "".join(f"<th>{d}</th>" for d in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"))
    rows, day = "", 1
    for _ in range(5):
        rows += "<tr>"
        for _ in range(7):
            event = (
                f'<div style="background:{TONE_COLORS[rng.choice(TONES)]};color:#fff;font-size:11px;padding:1px 5px;border-radius:3px">{e(w.word())}</div>'
                if kit.chance(0.15) and not kit.look.narrow
                else ""
            )
            rows += f'<td style="height:{rng.choice((64,)) if not kit.look.narrow else 40}px;vertical-align:top">{(day - 1) % 31 + 1}{event}</td>'
            day += 1
        rows += "</tr>"
    bar = f'<div class="w-between"><div class="w-tight">{kit.button("Today", "plain")}{kit.button("‹", "plain", False)}{kit.button("›", "plain", False)}</div><h3 style="margin:0">{e(w.date())}</h3>{kit.button("Month", "line", False)}</div>'
    cls = {"bootstrap": "table table-bordered", "bulma": "table is-bordered is-fullwidth"}.get(kit.family, "")
    return _app(
        kit,
        kit.card(
            f'{bar}<br><table class="{cls}" style="table-layout:fixed"><thead><tr>{days}</tr></thead><tbody>{rows}</tbody></table>'
        ),
    )


def results(kit: Kit) -> str:
    w = kit.words
    items = "".join(
        f'<div style="margin-bottom:22px"><div class="w-small w-mute">{e(w.word())}.example › {e(w.word())}</div><a href="#" style="font-size:19px">{e(w.title(3, 9))}</a><div>{e(w.paragraph(1, 2))}</div></div>'
        for _ in range(kit.rng.randint(4, 8))
    )
    return f'<header class="w-bar">{kit.logo(34)}{kit.search()}<nav class="w-push"><ul>{"".join(f"<li><a href=#>{e(n)}</a></li>" for n in kit.rng.sample(NAV, 3))}</ul></nav></header>{kit.tabs(["All", "Images", "News", "Maps"])}<main class="w-pad" style="max-width:760px;margin-inline-start:{0 if kit.look.narrow else kit.rng.choice((0, 40, 120))}px"><p class="w-mute w-small">{kit.rng.randint(100, 99999)} {e(w.word())} (0.{kit.rng.randint(10, 90)} s)</p>{items}{kit.pages()}</main>'


def error(kit: Kit) -> str:
    w = kit.words
    number = kit.rng.choice(("404", "500", "403", "401"))
    body = f'<div class="w-center" style="padding:60px 0"><div style="font-size:{kit.rng.choice((72, 96, 120))}px;font-weight:700;color:{kit.rng.choice((kit.look.primary, "#5a5c69"))}">{number}</div><p style="font-size:20px">{e(w.pick(["Page Not Found", "Something went wrong", "Access denied", "Unauthorized"]))}</p><p class="w-mute">{e(w.sentence())}</p>{kit.photo(160, "240px") if kit.chance(0.3) else ""}<a href="#">← {e(w.pick(["Back to Dashboard", "Go home", "Return to Dashboard"]))}</a></div>'
    return _app(kit, body) if kit.chance(0.5) else body


def checkout(kit: Kit) -> str:
    w = kit.words
    rows = "".join(
        f'<li class="w-between"><div><b>{e(w.title(1, 3))}</b><div class="w-mute w-small">{e(w.title(2, 4))}</div></div><span class="w-mute">{w.money()}</span></li>'
        for _ in range(3)
    )
    cart = f'<div><div class="w-between"><h4>{e(w.pick(["Your cart", "Order summary"]))}</h4>{kit.badge(str(kit.rng.randint(1, 9)))}</div>{kit.card(f"<ul class=&quot;w-flat w-line&quot;>{rows}</ul>".replace("&quot;", chr(34)))}<br><div class="w-tight">{kit.field("Promo code", "")}{kit.button("Redeem", "plain")}</div></div>'
    return f'{b.topbar(kit)}<main class="w-wrap w-pad"><h2 class="w-center">{e(w.pick(["Checkout form", "Checkout", "Payment"]))}</h2>{b.split(kit, b.form_card(kit, 7), cart)}</main>{b.footer(kit)}'


def modal(kit: Kit) -> str:
    """A dialog over a dimmed page."""
    w = kit.words
    under = kit.rng.choice((dashboard, article, tables))(kit)
    body = f'<p>{e(w.paragraph(1, 2))}</p>{kit.field() if kit.chance(0.5) else ""}<div class="w-tight" style="justify-content:flex-end">{kit.button("Cancel", "plain", False)}{kit.button(w.pick(BUTTONS), "main", False)}</div>'
    panel = f'<div style="background:{kit.look.surface};color:{kit.look.ink};width:{kit.rng.choice((360, 440, 520))}px;max-width:92vw;border-radius:{kit.look.radius}px;padding:20px" role="dialog"><div class="w-between"><h3 style="margin:0">{b.head(kit)}</h3><span>×</span></div><hr>{body}</div>'
    return f'{under}<div style="position:fixed;inset:0;background:rgba(0,0,0,.5);display:flex;align-items:center;justify-content:center;z-index:99">{panel}</div>'


KINDS: dict[str, tuple[Callable[[Kit], str], float]] = {
    "dashboard": (dashboard, 18), "tables": (tables, 7), "cards": (cards, 9), "components": (components, 8), "login": (login, 7),
    "forms": (forms, 8), "settings": (settings, 4), "marketing": (marketing, 10), "pricing": (pricing, 2), "article": (article, 3),
    "blog": (blog, 2), "docs": (docs, 3), "shop": (shop, 4), "product": (product, 2), "gallery": (gallery, 2), "profile": (profile, 5),
    "inbox": (inbox, 3), "chat": (chat, 2), "kanban": (kanban, 2), "calendar": (calendar, 2), "results": (results, 2), "error": (error, 2),
    "checkout": (checkout, 2), "modal": (modal, 1),
}  # fmt: skip


def generate(seed: int, packages: Path, base: str = "../packages", narrow: bool = False) -> tuple[str, str]:
    """(kind, HTML) of the page number `seed`.

    `packages` is the folder of unpacked packages (icon files are read from it), `base` the URL that leads to it from
    where the page will lie; pictures are expected beside it. `narrow` pages are meant for phones.
    """
    rng = random.Random(f"page {seed} {narrow}")
    rtl = rng.random() < 0.03
    look = looks.look(rng, base, narrow=narrow, rtl=rtl)
    language = rng.choice(RTL_LANGUAGES if rtl else LANGUAGES)
    kit = Kit(rng, look, Words(rng, language), packages)
    kind = rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    return kind, _document(kit, kind, kind, language, rtl=rtl)


def site(seed: int, packages: Path, base: str, count: int) -> list[str]:
    """HTML of `count` pages of one site: one look, and menus, bars and footers that stay. English, for a wide screen."""
    rng = random.Random(f"site {seed}")
    kit = Kit(rng, looks.look(rng, base, narrow=False), Words(rng, "en"), packages)
    kit.shared = {}
    kinds = {kind: weight for kind, (_, weight) in KINDS.items() if kind not in _NO_PLACE}
    drawn = rng.choices(list(kinds), list(kinds.values()), k=count)
    name = kit.words.company()
    return [_document(kit, kind, f"{kit.words.title(1, 2)} - {name}", "en") for kind in drawn]


_NO_PLACE = ("modal",)  # kinds that are no place to go to


def _document(kit: Kit, kind: str, title: str, language: str, *, rtl: bool = False) -> str:
    rng, look, base = kit.rng, kit.look, kit.look.base
    body = KINDS[kind][0](kit)
    links = "".join(f'<link rel="stylesheet" href="{base}/{style}">' for style in look.styles)
    theme = ""
    if look.framework in ("bootstrap", "adminkit"):
        theme = f' data-bs-theme="{"dark" if look.dark else "light"}"'
    elif look.framework in ("pico", "bulma"):
        theme = f' data-theme="{"dark" if look.dark else "light"}"'
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>{e(title)}</title>{links}<style>{looks.own_css(look, rng)}</style>'
    return f'<!doctype html><html lang="{language}" dir="{"rtl" if rtl else "ltr"}"{theme}><head>{head}</head><body>{body}</body></html>'
