"""Blocks of generated pages: things larger than a component and smaller than a page. Each returns HTML."""

from html import escape as e

from watersmeet.pipelines.data.generator import pictures
from watersmeet.pipelines.data.generator.kit import ICONS, TONE_COLORS, TONES, Kit
from watersmeet.pipelines.data.generator.words import COLUMNS, HEADS, LABELS, NAV, STATS, TAGS


def head(kit: Kit) -> str:
    return e(kit.words.pick(HEADS))


def grid(kit: Kit, items: list[str], columns: int) -> str:
    if kit.look.narrow:
        columns = 1 if columns < 3 or kit.chance(0.7) else 2
    return f'<div class="w-grid" style="grid-template-columns:repeat({columns},minmax(0,1fr))">{"".join(items)}</div>'


def split(kit: Kit, left: str, right: str, shares: str = "2fr 1fr") -> str:
    if kit.look.narrow:
        return f'<div class="w-grid">{left}{right}</div>'
    return f'<div class="w-grid" style="grid-template-columns:{shares};align-items:{kit.rng.choice(("start", "stretch"))}">{left}{right}</div>'


def sidebar(kit: Kit) -> str:
    return kit.once("sidebar", lambda: _sidebar(kit))


def _sidebar(kit: Kit) -> str:
    rng, w = kit.rng, kit.words
    links = rng.sample(NAV, rng.randint(5, 14))
    on = rng.randrange(len(links))
    glyphs = kit.chance(0.75)
    parts: list[str] = []
    group: list[str] = []

    def flush() -> None:
        if group:
            parts.append(f"<ul>{''.join(group)}</ul>")
            group.clear()

    for i, name in enumerate(links):
        if i and kit.chance(0.18):
            flush()
            if kit.chance(0.6):
                parts.append(
                    f'<div class="w-cap">{e(w.pick(["Interface", "Addons", "Pages", "Account", "Tools", "More", "Apps", "Favourites"]))}</div>'
                )
            else:
                parts.append("<hr style='margin:8px 0;opacity:.3'>")
        tail = (
            f'<span class="w-push">{kit.badge(str(rng.randint(1, 24)))}</span>'
            if kit.chance(0.1)
            else (f'<span class="w-push">{rng.choice("›+▾")}</span>' if kit.chance(0.1) else "")
        )
        text = e(name if w.language == "en" else w.title(1, 2))
        group.append(
            f'<li><a href="#" class="{"w-on" if i == on else ""}">{kit.icon() if glyphs else ""}<span>{text}</span>{tail}</a></li>'
        )
    flush()
    brand = f'<a href="#" class="w-brand" style="padding:8px 4px 16px">{kit.logo() if kit.chance(0.6) else kit.icon()}<span>{e(w.company()[:18])}</span></a>'
    foot = ""
    if kit.chance(0.3):
        foot = f'<div class="w-tight" style="margin-top:24px">{kit.avatar(36)}<div><div>{e(w.name()[:20])}</div><div class="w-small" style="opacity:.7">{e(w.job()[:20])}</div></div></div>'
    elif kit.chance(0.2):
        foot = f'<div class="w-center" style="margin-top:20px;padding:12px;background:rgba(127,127,127,.15);border-radius:8px"><p class="w-small">{e(w.sentence(5, 10))}</p>{kit.button()}</div>'
    tag = rng.choice(("nav", "aside", "div"))
    return f'<{tag} class="w-side">{brand}{"".join(parts)}{foot}</{tag}>'


def topbar(kit: Kit, brand: bool = True, links: bool | None = None) -> str:
    return kit.once(f"topbar {brand} {links}", lambda: _topbar(kit, brand, links))


def _topbar(kit: Kit, brand: bool, links: bool | None) -> str:
    rng, w = kit.rng, kit.words
    parts = []
    if brand:
        parts.append(
            f'<a href="#" class="w-brand">{kit.logo(rng.choice((24, 28, 32))) if kit.chance(0.6) else ""}<span>{e(w.company()[:18])}</span></a>'
        )
    if kit.look.narrow:
        parts.append(
            f'<button type="button" class="w-push" style="background:none;border:1px solid #8886;border-radius:4px;padding:4px 9px;color:inherit">{kit.icon("list") or "☰"}</button>'
        )
        return f'<header class="w-bar">{"".join(parts)}</header>'
    if links if links is not None else kit.chance(0.6):
        names = rng.sample(NAV, rng.randint(3, 7))
        items = "".join(f'<li><a href="#">{e(n if w.language == "en" else w.title(1, 2))}</a></li>' for n in names)
        parts.append(f"<nav{' class=w-push' if kit.chance(0.4) else ''}><ul>{items}</ul></nav>")
    if kit.chance(0.5):
        parts.append(kit.search())
    right = []
    for _ in range(rng.randint(0, 3)):
        glyph = kit.icon(rng.choice(("bell", "envelope", "gear", "cart", "chat")))
        right.append(
            f'<a href="#" style="position:relative">{glyph}{"<sup>" + kit.badge(str(rng.randint(1, 9)) + "+") + "</sup>" if kit.chance(0.25) else ""}</a>'
            if glyph
            else ""
        )
    if kit.chance(0.5):
        right.append(f'<a href="#" class="w-tight"><span>{e(w.name()[:18])}</span>{kit.avatar(32)}</a>')
    if kit.chance(0.4):
        right.append(kit.button() + (kit.button(kind="line") if kit.chance(0.4) else ""))
    parts.append(f'<div class="w-tight w-push" style="gap:14px">{"".join(right)}</div>')
    tag = rng.choice(("header", "nav", "header"))
    return f'<{tag} class="w-bar">{"".join(parts)}</{tag}>'


def stat(kit: Kit, style: int) -> str:
    rng, w = kit.rng, kit.words
    name, value = e(w.pick(STATS)), rng.choice((w.money(), w.number(), w.number()))
    tone = TONE_COLORS[rng.choice(TONES)]
    chip = f'<span class="w-chip" style="width:44px;height:44px;background:{rng.choice((tone, tone + "33"))};color:{"#fff" if style % 2 else tone}">{kit.icon(size=20)}</span>'
    change = f'<span style="color:{rng.choice(("#1cc88a", "#e74a3b"))}">{w.percent()}</span> <span class="w-mute">{e(w.pick(["since last month", "than yesterday", "vs last week", "this year"]))}</span>'
    if style == 0:
        return kit.card(
            f'<div class="w-between"><div><div class="w-small" style="color:{tone};text-transform:uppercase;font-weight:700">{name}</div><div class="w-big">{value}</div></div>{kit.icon(size=30, tint="#bbbbbb")}</div>',
            style=f"border-inline-start:4px solid {tone}",
        )
    if style == 1:
        return kit.card(
            f'<div class="w-between"><div><p class="w-mute w-small" style="margin:0">{name}</p><div class="w-big">{value}</div></div>{chip}</div><div class="w-small">{change}</div>'
        )
    if style == 2:
        return kit.card(
            f'<div class="w-center"><div class="w-big">{value}</div><div class="w-mute">{name}</div>{kit.progress() if kit.chance(0.4) else ""}</div>'
        )
    if style == 3:
        return kit.card(
            f'<div style="color:#fff"><div>{name}</div><div class="w-big">{value}</div></div>',
            style=f"background:{tone}",
            foot=f'<div class="w-between w-small" style="color:#fff"><a href="#" style="color:#fff">{e(w.pick(["View Details", "More info"]))}</a><span>›</span></div>'
            if kit.chance(0.6)
            else "",
        )
    return kit.card(
        f'<div class="w-tight" style="gap:14px">{chip}<div><div class="w-mute w-small">{name}</div><div class="w-big">{value}</div></div></div>'
    )


def stats(kit: Kit) -> str:
    style = kit.rng.randrange(5)
    n = kit.rng.choice((3, 4, 4, 4, 2))
    return grid(kit, [stat(kit, style) for _ in range(n)], n)


def chart_card(kit: Kit, width: int, height: int | None = None) -> str:
    height = height or kit.rng.choice((160, 200, 240, 280))
    menu = (
        f'<div class="w-between"><span>{head(kit)}</span>{kit.rng.choice((kit.icon("list"), "⋮", kit.button(kind="text", icon=False)))}</div>'
        if kit.chance(0.4)
        else head(kit)
    )
    foot = (
        f'<span class="w-mute w-small">{e(kit.words.pick(["Updated yesterday at 11:59 PM", "updated 4 min ago", "Last 30 days"]))}</span>'
        if kit.chance(0.3)
        else ""
    )
    legend = ""
    if kit.chance(0.4):
        legend = (
            '<div class="w-row w-small" style="justify-content:center;gap:14px">'
            + "".join(
                f'<span><span class="w-dot" style="background:{pictures.color(kit.rng)}"></span> {e(kit.words.title(1, 1))}</span>'
                for _ in range(3)
            )
            + "</div>"
        )
    width = min(width, 330) if kit.look.narrow else width
    return kit.card(kit.chart(width, height) + legend, head=menu, foot=foot)


def table_card(kit: Kit, rows: int | None = None, columns: int | None = None) -> str:
    rng, w = kit.rng, kit.words
    columns = columns or (rng.randint(2, 4) if kit.look.narrow else rng.randint(3, 8))
    names = rng.sample(COLUMNS, columns)
    rows = rows or rng.randint(3, 12)
    person, boxes, acts = kit.chance(0.3), kit.chance(0.15), kit.chance(0.25)
    body = []
    for _ in range(rows):
        cells = []
        for name in names:
            if name == "Status" or name == "Type" or name == "Priority":
                cells.append(kit.badge())
            elif name in ("Progress", "Completion"):
                cells.append(f'<div style="min-width:90px">{kit.progress()}</div>')
            elif name == "Action":
                cells.append(kit.button(kit.rng.choice(("Edit", "View", "Delete")), icon=False))
            else:
                cells.append(e(w.cell(name)))
        if person:
            cells[0] = (
                f'<div class="w-tight">{kit.avatar(34)}<div><div>{e(w.name())}</div><div class="w-mute w-small">{e(w.email())}</div></div></div>'
            )
        if boxes:
            cells.insert(0, '<input type="checkbox">')
        if acts:
            cells.append(f'<a href="#">{e(w.pick(["Edit", "Details", "Open"]))}</a>')
        body.append(cells)
    heads = [e(n if w.language == "en" else w.title(1, 1)) for n in names]
    heads = ([""] if boxes else []) + heads + ([""] if acts else [])
    table = kit.table(heads, body)
    above = ""
    if kit.chance(0.35):
        above = f'<div class="w-between" style="margin-bottom:10px"><span>{e(w.pick(["Show 10 entries", "All records", "Latest"]))}</span>{kit.search()}</div>'
    below = (
        f'<div class="w-between" style="margin-top:10px"><span class="w-mute w-small">Showing 1 to {rows} of {rng.randint(rows, 400)} entries</span>{kit.pages()}</div>'
        if kit.chance(0.35)
        else ""
    )
    if kit.chance(0.2):
        return f"<section><h3>{head(kit)}</h3>{above}{table}{below}</section>"
    return kit.card(
        f'<div style="overflow:hidden">{above}{table}{below}</div>', head=head(kit) if kit.chance(0.85) else ""
    )


def progress_card(kit: Kit) -> str:
    w = kit.words
    rows = "".join(
        f'<div style="margin-bottom:14px"><div class="w-between w-small"><span>{e(w.title(1, 3))}</span><b>{(v := kit.rng.randint(5, 99))}%</b></div>{kit.progress(v)}</div>'
        for _ in range(kit.rng.randint(3, 6))
    )
    return kit.card(rows, head=head(kit))


def list_card(kit: Kit, n: int | None = None) -> str:
    """People, activities, tasks, messages or files below each other."""
    rng, w = kit.rng, kit.words
    kind = rng.choice(("people", "activity", "tasks", "messages", "files", "plain", "pairs"))
    rows = []
    for _ in range(n or rng.randint(3, 7)):
        if kind == "people":
            row = f'<div class="w-tight" style="gap:12px">{kit.avatar(rng.choice((32, 40, 48)))}<div><b>{e(w.name())}</b><div class="w-mute w-small">{e(w.job()[:30])}</div></div><span class="w-push">{kit.button(icon=False) if kit.chance(0.5) else e(w.time())}</span></div>'
        elif kind == "activity":
            row = f'<div class="w-tight" style="align-items:flex-start"><span class="w-dot" style="margin-top:7px;background:{pictures.color(rng)}"></span><div>{e(w.sentence(4, 10))}<div class="w-mute w-small">{e(w.time())}</div></div></div>'
        elif kind == "tasks":
            row = f'<div class="w-between">{kit.check(w.title(2, 5), "checkbox")}{kit.badge() if kit.chance(0.5) else ""}</div>'
        elif kind == "messages":
            row = f'<div class="w-tight" style="align-items:flex-start;gap:12px">{kit.avatar(40)}<div style="flex:1"><div class="w-between"><b>{e(w.name())}</b><span class="w-mute w-small">{e(w.time())}</span></div><p class="w-small" style="margin:0">{e(w.sentence(6, 14))}</p></div></div>'
        elif kind == "files":
            row = f'<div class="w-tight">{kit.icon(rng.choice(("file-earmark", "folder", "image")), 20)}<a href="#">{e(w.word())}-{e(w.word())}.{rng.choice(("pdf", "png", "docx", "zip"))}</a><span class="w-push w-mute w-small">{rng.randint(1, 900)} KB</span></div>'
        elif kind == "pairs":
            row = f'<div class="w-between"><span class="w-mute">{e(w.pick(LABELS))}</span><span>{e(w.title(1, 3))}</span></div>'
        else:
            row = f'<a href="#">{e(w.title(3, 8))}</a>'
        rows.append(f"<li>{row}</li>")
    tag = rng.choice(("ul", "ul", "div"))
    body = (
        "".join(rows)
        if tag == "ul"
        else "".join(r.replace("<li>", "<div>", 1)[: -len("</li>")] + "</div>" for r in rows)
    )
    inner = f'<{tag} class="w-flat {"w-line" if kit.chance(0.6) else "w-col"}">{body}</{tag}>'
    top = (
        f'<div class="w-between"><span>{head(kit)}</span><a href="#" class="w-small">{e(w.pick(["View all", "See all", "More"]))}</a></div>'
        if kit.chance(0.3)
        else head(kit)
    )
    return kit.card(inner, head=top)


def form_card(kit: Kit, n: int | None = None, two: bool | None = None) -> str:
    rng, w = kit.rng, kit.words
    fields = [kit.field(label if w.language == "en" else None) for label in rng.sample(LABELS, n or rng.randint(2, 7))]
    if (two if two is not None else kit.chance(0.4)) and not kit.look.narrow:
        body = f'<div style="display:grid;grid-template-columns:1fr 1fr;gap:0 16px">{"".join(fields)}</div>'
    else:
        body = "".join(fields)
    if kit.chance(0.5):
        body += "".join(kit.check() for _ in range(rng.randint(1, 3)))
    buttons = kit.button(kind="main") + (
        kit.button(kind=rng.choice(("plain", "line", "text"))) if kit.chance(0.5) else ""
    )
    body += f'<div class="w-tight" style="margin-top:12px;{rng.choice(("", "justify-content:flex-end", ""))}">{buttons}</div>'
    intro = f'<p class="w-mute">{e(w.sentence())}</p>' if kit.chance(0.3) else ""
    return kit.card(f'<form style="margin:0">{intro}{body}</form>', head=head(kit) if kit.chance(0.7) else "")


def text_card(kit: Kit) -> str:
    w = kit.words
    more = f"<p>{e(w.paragraph(1, 2))}</p>" if kit.chance(0.5) else ""
    act = kit.button() if kit.chance(0.5) else f'<a href="#">{e(w.title(2, 5))} →</a>' if kit.chance(0.5) else ""
    picture = f'<div class="w-center">{kit.photo(160, "60%")}</div>' if kit.chance(0.25) else ""
    return kit.card(f"{picture}<p>{e(w.paragraph(1, 3))}</p>{more}{act}", head=head(kit))


def feature(kit: Kit, style: int) -> str:
    w = kit.words
    glyph = kit.icon(size=28, tint=kit.look.primary)
    if style == 1:
        glyph = f'<span class="w-chip" style="width:56px;height:56px;background:{kit.look.primary}22;color:{kit.look.primary}">{kit.icon(size=24)}</span>'
    link = f'<a href="#">{e(w.pick(["Learn more", "Read more", "Details"]))}</a>' if kit.chance(0.3) else ""
    body = f'<div class="{"w-center" if style != 2 else ""}">{glyph}<h3 style="margin:10px 0 6px">{e(w.title(1, 4))}</h3><p class="w-mute">{e(w.sentence(8, 18))}</p>{link}</div>'
    return kit.card(body) if style == 3 else body


def features(kit: Kit) -> str:
    style, n = kit.rng.randrange(4), kit.rng.choice((3, 3, 4, 6))
    return grid(kit, [feature(kit, style) for _ in range(n)], 3 if n != 4 else kit.rng.choice((2, 4)))


def picture_card(kit: Kit, kind: str) -> str:
    """A card below a photo: product, post, place or person."""
    rng, w = kit.rng, kit.words
    img = kit.photo(rng.choice((120, 140, 160, 200)) if kind != "tile" else 180)
    if kind == "product":
        old = f' <s class="w-mute w-small">{w.money()}</s>' if kit.chance(0.3) else ""
        stars = (
            f'<div style="color:#f6b100">{"★" * rng.randint(2, 5)} <span class="w-mute w-small">({rng.randint(1, 400)})</span></div>'
            if kit.chance(0.5)
            else ""
        )
        body = f'<h4 style="margin:0 0 4px">{e(w.title(1, 4))}</h4>{stars}<div class="w-between"><div><b>{w.money()}</b>{old}</div>{kit.button(rng.choice(("Add to cart", "Buy now", "View", "Add")))}</div>'
    elif kind == "post":
        who = (
            f'<div class="w-tight w-small">{kit.avatar(28)}<span>{e(w.name())}</span><span class="w-mute">{e(w.date())}</span></div>'
            if kit.chance(0.5)
            else f'<p class="w-mute w-small">{e(w.date())}</p>'
        )
        body = f'{kit.badge() if kit.chance(0.4) else ""}<h4 style="margin:4px 0">{e(w.title(3, 8))}</h4><p>{e(w.sentence(8, 18))}</p>{who}'
    elif kind == "person":
        body = f'<div class="w-center"><h4 style="margin:0">{e(w.name())}</h4><p class="w-mute">{e(w.job()[:30])}</p><div class="w-tight" style="justify-content:center">{"".join(kit.icon() for _ in range(3))}</div></div>'
    else:
        body = f"<div class='w-between'><span>{e(w.title(1, 3))}</span>{kit.icon('heart')}</div>"
    return kit.card(f'{img}<div style="padding:14px">{body}</div>', pad=False, style="overflow:hidden")


def gallery(kit: Kit) -> str:
    columns = kit.rng.choice((2, 3, 4, 5))
    tiles = [
        f"<div>{kit.photo(kit.rng.choice((130, 170, 210)), radius=kit.look.radius)}{f'<div class=w-small>{e(kit.words.title(1, 3))}</div>' if kit.chance(0.3) else ''}</div>"
        for _ in range(columns * kit.rng.randint(1, 3))
    ]
    return grid(kit, tiles, columns)


def price(kit: Kit, best: bool) -> str:
    rng, w = kit.rng, kit.words
    mark = kit.icon("check", tint="#1cc88a") or "✓"
    items = "".join(f"<li>{mark} {e(w.title(2, 4))}</li>" for _ in range(rng.randint(3, 6)))
    body = f'<div class="w-center"><div class="w-mute">{e(w.pick(["Free", "Basic", "Pro", "Team", "Business", "Enterprise", "Starter"]))}</div><div style="font-size:38px;font-weight:700">${rng.randint(0, 199)}<span class="w-mute" style="font-size:14px">/mo</span></div><ul class="w-flat w-col" style="margin:14px 0">{items}</ul>{kit.button(kind="main" if best else "line", icon=False)}</div>'
    return kit.card(
        body,
        head=e(w.pick(["Most popular", "Recommended", "Best value"])) if best and kit.chance(0.5) else "",
        style=f"border:2px solid {kit.look.primary}" if best else "",
    )


def prices(kit: Kit) -> str:
    n = kit.rng.choice((2, 3, 3, 4))
    return grid(kit, [price(kit, i == 1) for i in range(n)], n)


def hero(kit: Kit) -> str:
    rng, w = kit.rng, kit.words
    size = rng.choice((34, 40, 48, 56)) if not kit.look.narrow else rng.choice((26, 30, 34))
    tag = (
        f'<p class="w-small" style="text-transform:uppercase;letter-spacing:1px;color:{kit.look.primary}">{e(w.title(1, 3))}</p>'
        if kit.chance(0.3)
        else ""
    )
    words = f'{tag}<h1 style="font-size:{size}px;line-height:1.15">{e(w.title(3, 8))}</h1><p style="font-size:1.15em">{e(w.paragraph(1, 2))}</p><div class="w-row" style="gap:12px{";justify-content:center" if (center := kit.chance(0.5)) else ""}">{kit.button(kind="main")}{kit.button(kind="line") if kit.chance(0.6) else ""}</div>'
    kind = rng.randrange(4)
    if kind == 0:
        tint = rng.choice((kit.look.primary, f"linear-gradient(120deg,{kit.look.primary},{pictures.color(rng)})"))
        return f'<section class="w-hero w-section" style="background:{tint};color:#fff;{"text-align:center" if center else ""}"><div class="w-wrap" style="color:#fff">{words.replace(kit.look.primary, "#ffffff")}</div></section>'
    if kind == 1:
        shade = rng.choice(("rgba(0,0,0,.45)", "rgba(10,20,50,.55)"))
        url = f"{kit.image_base}/photo{rng.randrange(pictures.PHOTOS)}.jpg"
        return f'<section class="w-hero w-section" style="background:linear-gradient({shade},{shade}),url({url}) center/cover;color:#fff;{"text-align:center" if center else ""}"><div class="w-wrap" style="color:#fff">{words}</div></section>'
    if kind == 2:
        side = (
            kit.photo(rng.choice((260, 320, 380)), radius=kit.look.radius)
            if kit.chance(0.7)
            else kit.card(kit.chart(420, 240))
        )
        return f'<section class="w-section"><div class="w-wrap">{split(kit, f"<div>{words}</div>", f"<div>{side}</div>", "1fr 1fr")}</div></section>'
    return f'<section class="w-section" style="{"text-align:center" if center else ""}"><div class="w-wrap">{words}</div></section>'


def quote(kit: Kit) -> str:
    w = kit.words
    return kit.card(
        f'<blockquote style="margin:0">{e(w.paragraph(1, 2))}</blockquote><div class="w-tight" style="margin-top:12px">{kit.avatar(40)}<div><b>{e(w.name())}</b><div class="w-mute w-small">{e(w.job()[:30])}</div></div></div>'
    )


def faq(kit: Kit) -> str:
    w = kit.words
    rows = "".join(
        f"<details{' open' if i == 0 else ''}><summary>{e(w.sentence(4, 9)[:-1])}?</summary><p>{e(w.paragraph(1, 2))}</p></details>"
        for i in range(kit.rng.randint(3, 6))
    )
    return f'<div class="w-line">{rows}</div>'


def footer(kit: Kit) -> str:
    return kit.once("footer", lambda: _footer(kit))


def _footer(kit: Kit) -> str:
    rng, w = kit.rng, kit.words
    dark = kit.chance(0.5)
    columns = []
    for _ in range(rng.randint(0, 4)):
        links = "".join(
            f'<li><a href="#" style="color:inherit">{e(w.pick(NAV))}</a></li>' for _ in range(rng.randint(3, 5))
        )
        columns.append(
            f"<div><h5>{e(w.title(1, 2))}</h5><ul class='w-flat w-small' style='line-height:1.9'>{links}</ul></div>"
        )
    social = (
        f'<div class="w-tight">{"".join(kit.icon() for _ in range(rng.randint(2, 4)))}</div>' if kit.chance(0.4) else ""
    )
    low = f'<div class="w-between w-small"><span>© {rng.randint(2015, 2027)} {e(w.company())}. {e(w.pick(["All rights reserved", "Made with love", "Privacy Policy · Terms"]))}</span>{social}</div>'
    body = (grid(kit, columns, len(columns)) if columns else "") + low
    style = "background:#212529;color:#ced4da" if dark else f"border-top:1px solid {kit.look.border}"
    return f'<footer style="{style};padding:{rng.choice((16, 24, 40))}px 0"><div class="w-wrap">{body}</div></footer>'


def code(kit: Kit) -> str:
    rng, w = kit.rng, kit.words
    lines = []
    for _ in range(rng.randint(3, 10)):
        pad = "  " * rng.randrange(3)
        name = w.word()
        lines.append(
            pad
            + rng.choice(
                (
                    f"{name} = {rng.randint(0, 99)}",
                    f"def {name}({w.word()}, {w.word()}):",
                    f"return {name}.{w.word()}()",
                    f"import {name}",
                    f"$ {name} --{w.word()} {w.word()}",
                    f'"{name}": "{w.word()}",',
                    f'<{name[:4]} class="{w.word()}">',
                    "}",
                    f"if ({name}) {{",
                    f"// {w.words(4)}",
                    f".{name} {{ color: red; }}",
                )
            )
        )
    return f'<pre class="w-code"><code>{e(chr(10).join(lines))}</code></pre>'


def _running(kit: Kit) -> str:
    """A few sentences of running text, some with a link and a code word inside."""
    w = kit.words
    link = f'<a href="#">{e(w.words(kit.rng.randint(1, 3)))}</a> {e(w.sentence(3, 8).lower())} <code>{e(w.word())}()</code> '
    return f"{e(w.sentence())} {link if kit.chance(0.4) else ''}{e(w.sentence())}"


def prose(kit: Kit, parts: int) -> str:
    rng, w = kit.rng, kit.words
    out = []
    for _i in range(parts):
        kind = rng.choices(
            ("p", "p2", "h2", "h3", "ul", "ol", "code", "img", "quote", "table", "note", "dl"),
            (8, 5, 4, 3, 3, 1, 3, 1, 1, 1, 1, 1),
        )[0]
        if kind in ("p", "p2"):
            out.append(f"<p>{' '.join(_running(kit) for _ in range(rng.randint(1, 3)))}</p>")
        elif kind in ("h2", "h3"):
            out.append(f"<{kind}>{e(w.title(2, 6))}</{kind}>")
        elif kind in ("ul", "ol"):
            out.append(
                f"<{kind}>{''.join(f'<li>{_running(kit) if kit.chance(0.4) else e(w.title(2, 8))}</li>' for _ in range(rng.randint(2, 6)))}</{kind}>"
            )
        elif kind == "code":
            out.append(code(kit))
        elif kind == "img":
            out.append(
                f"<figure style='margin:0 0 12px'>{kit.photo(rng.choice((180, 240, 300)))}<figcaption class='w-mute w-small'>{e(w.sentence(4, 8))}</figcaption></figure>"
            )
        elif kind == "quote":
            out.append(f"<blockquote>{e(w.paragraph(1, 2))}</blockquote>")
        elif kind == "table":
            out.append(table_card(kit, rng.randint(2, 5), 3))
        elif kind == "note":
            out.append(kit.alert())
        else:
            out.append(
                "<dl>"
                + "".join(f"<dt><b>{e(w.word())}</b></dt><dd>{e(w.sentence())}</dd>" for _ in range(rng.randint(2, 4)))
                + "</dl>"
            )
    return "".join(out)


def icon_row(kit: Kit, n: int) -> str:
    return "".join(kit.icon(kit.rng.choice(ICONS)) for _ in range(n))


def chips(kit: Kit) -> str:
    return (
        '<div class="w-row" style="gap:8px;margin-bottom:12px">'
        + "".join(kit.badge(kit.words.pick(TAGS)) for _ in range(kit.rng.randint(2, 7)))
        + "</div>"
    )
