"""How a generated page looks: a CSS framework with a theme, a font, an icon set and our own layout rules."""

import random
from dataclasses import dataclass

from watersmeet.pipelines.data.generator.pictures import color

SWATCHES = (
    "brite cerulean cosmo cyborg darkly flatly journal litera lumen lux materia minty morph pulse quartz sandstone "
    "simplex sketchy slate solar spacelab superhero united vapor yeti zephyr"
).split()
DARK_SWATCHES = {"cyborg", "darkly", "quartz", "slate", "solar", "superhero", "vapor"}
PICO = "amber blue cyan fuchsia green grey indigo jade lime orange pink pumpkin purple red sand slate violet yellow zinc".split()
FONTS = ("inter", "roboto", "open-sans", "lato", "poppins", "merriweather")
SYSTEM_FONTS = (
    "Arial, Helvetica, sans-serif",
    "'Helvetica Neue', Arial, sans-serif",
    "'Liberation Sans', sans-serif",
    "'Times New Roman', Times, serif",
    "Georgia, 'Liberation Serif', serif",
    "'DejaVu Sans', Verdana, sans-serif",
    "'Courier New', monospace",
    "system-ui, sans-serif",
)


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look. `base` leads from the page's folder to the packages' folder; colours are #rrggbb."""

    base: str
    framework: str
    styles: tuple[str, ...]
    font: str
    icons: str  # "bi", "fa", "svg" or "none"
    dark: bool
    rtl: bool
    primary: str
    background: str
    surface: str
    ink: str
    soft: str  # muted text
    border: str
    radius: int
    gap: int
    size: int  # px of body text
    narrow: bool
    own: bool  # components are styled by our own rules
    shadow: str
    sidebar_background: str
    sidebar_ink: str
    bar_background: str
    bar_ink: str


def look(rng: random.Random, base: str, *, narrow: bool, rtl: bool = False) -> Look:
    """A random look; about two in five are of the Bootstrap family, which most dashboards descend from."""
    family = rng.choices(
        ("bootstrap", "adminkit", "bulma", "pico", "milligram", "water", "own"), (28, 8, 12, 8, 4, 4, 36)
    )[0]
    styles: list[str] = []
    dark = rng.random() < 0.2
    theme = ""
    if family == "bootstrap":
        theme = rng.choice(SWATCHES) if rng.random() < 0.8 else ""
        styles.append(f"bootswatch/dist/{theme}/bootstrap.min.css" if theme else "bootstrap/dist/css/bootstrap.min.css")
        dark = theme in DARK_SWATCHES or (dark and not theme)
    elif family == "adminkit":
        styles.append("adminkit-core/dist/css/app.css")
        dark = False
    elif family == "bulma":
        styles.append("bulma/css/bulma.min.css")
    elif family == "pico":
        styles.append(f"picocss-pico/css/pico.{rng.choice(PICO)}.min.css")
    elif family == "milligram":
        styles.append("milligram/dist/milligram.min.css")
        dark = False
    elif family == "water":
        styles.append(f"water.css/out/{'dark' if dark else 'light'}.min.css")
    fonts = rng.random()
    web_font = rng.choice(FONTS)
    keep_font = family not in ("own",) and fonts < 0.55
    if not keep_font and fonts > 0.4:
        styles += [f"fontsource-{web_font}/{weight}.css" for weight in (400, 500, 700)]
        font = f"'{web_font.replace('-', ' ').title()}', sans-serif"
    else:
        font = "" if keep_font else rng.choice(SYSTEM_FONTS)
    icons = rng.choices(("bi", "fa", "svg", "none"), (5, 4, 2, 2))[0]
    if icons == "bi":
        styles.append("bootstrap-icons/font/bootstrap-icons.min.css")
    elif icons == "fa":
        styles.append("fortawesome-fontawesome-free/css/all.min.css")
    primary = color(rng, 0.35, 0.55, 0.8)
    if dark:
        background, surface, ink, soft, border = rng.choice(
            (
                ("#121212", "#1e1e1e", "#eeeeee", "#9a9a9a", "#333333"),
                ("#0f172a", "#1e293b", "#e2e8f0", "#94a3b8", "#334155"),
                ("#1a1d23", "#24282f", "#dddddd", "#888f99", "#3a3f47"),
            )
        )
    else:
        background, surface, ink, soft, border = rng.choice(
            (
                ("#ffffff", "#ffffff", "#212529", "#6c757d", "#dee2e6"),
                ("#f8f9fc", "#ffffff", "#3a3b45", "#858796", "#e3e6f0"),
                ("#f3f4f6", "#ffffff", "#111827", "#6b7280", "#e5e7eb"),
                ("#ffffff", "#f5f5f5", "#000000", "#666666", "#cccccc"),
                ("#fdf8f2", "#ffffff", "#33302c", "#84796c", "#e6dccf"),
                ("#eef2f7", "#ffffff", "#1d2b3a", "#5f7081", "#d5dde6"),
            )
        )
    side = rng.random()
    sidebar = (
        (primary, "#ffffff")
        if side < 0.3
        else (("#212529", "#adb5bd"), ("#1f2937", "#d1d5db"), ("#222e3c", "#ced4da"))[rng.randrange(3)]
        if side < 0.6
        else (surface, ink)
    )
    bar = rng.random()
    bar_colors = (surface, ink) if bar < 0.6 else (primary, "#ffffff") if bar < 0.85 else ("#212529", "#f8f9fa")
    return Look(
        base=base,
        framework=family,
        styles=tuple(styles),
        font=font,
        icons=icons,
        dark=dark,
        rtl=rtl,
        primary=primary,
        background=background,
        surface=surface,
        ink=ink,
        soft=soft,
        border=border,
        radius=rng.choice((0, 0, 3, 4, 6, 8, 8, 12, 16, 24)),
        gap=rng.choice((8, 12, 16, 16, 20, 24, 24, 32)),
        size=rng.choice((13, 14, 14, 15, 16, 16, 16, 17, 18)),
        narrow=narrow,
        own=family == "own",
        shadow=rng.choice(
            ("none", "none", "0 1px 3px rgba(0,0,0,.15)", "0 2px 12px rgba(0,0,0,.12)", "0 8px 24px rgba(60,60,90,.2)")
        ),
        sidebar_background=sidebar[0],
        sidebar_ink=sidebar[1],
        bar_background=bar_colors[0],
        bar_ink=bar_colors[1],
    )


def own_css(look: Look, rng: random.Random) -> str:
    """Layout rules for every page, and component rules where no framework styles them."""
    side = rng.choice((180, 200, 224, 224, 240, 260, 280))
    css = f"""
*{{box-sizing:border-box}} body{{margin:0;display:block!important}} .w-app{{display:flex;min-height:100vh}} .w-app>.w-main{{flex:1;min-width:0}}
.w-side{{width:{side}px;flex:none;background:{look.sidebar_background};color:{look.sidebar_ink};padding:{rng.choice((8, 12, 16, 20))}px}}
.w-side,.w-side ul,.w-side li{{display:block!important;width:auto}} nav.w-side,aside.w-side,div.w-side{{width:{side}px;{rng.choice(("", "position:sticky!important;top:0;height:100vh;overflow:hidden"))}}} .w-side a,.w-side a:hover{{color:inherit!important}} .w-side a{{color:inherit;text-decoration:none}} .w-side ul{{list-style:none;margin:0;padding:0}}
.w-side li>a{{display:flex;align-items:center;gap:10px;padding:{rng.choice((6, 8, 10, 12))}px {rng.choice((4, 8, 12))}px;border-radius:{min(look.radius, 10)}px}}
.w-side .w-on{{{rng.choice(("background:rgba(127,127,127,.25)", f"background:{look.primary};color:#fff", "font-weight:700", f"border-inline-start:3px solid {look.primary}"))}}}
.w-side .w-cap{{font-size:11px;text-transform:{rng.choice(("uppercase", "none"))};opacity:.65;margin:14px 6px 4px;font-weight:700}}
.w-brand{{display:flex;align-items:center;gap:10px;font-weight:700;font-size:{rng.choice((16, 18, 20, 22))}px;color:inherit;text-decoration:none}}
.w-bar{{display:flex;align-items:center;gap:{rng.choice((10, 16, 20, 24))}px;padding:{rng.choice((8, 12, 16, 20))}px {rng.choice((12, 16, 24))}px;background:{look.bar_background};color:{look.bar_ink};{rng.choice(("", "box-shadow:0 1px 4px rgba(0,0,0,.15)", f"border-bottom:1px solid {look.border}"))}}}
.w-bar a{{color:inherit;text-decoration:none}} .w-bar ul{{display:flex;gap:{rng.choice((12, 16, 20, 28))}px;list-style:none;margin:0;padding:0}} .w-push{{margin-inline-start:auto}}
.w-wrap{{max-width:{rng.choice((760, 900, 960, 1080, 1140, 1200))}px;margin-inline:auto;padding-inline:{16 if look.narrow else look.gap}px}} .w-pad{{padding:{look.gap}px}}
.w-grid{{display:grid;gap:{look.gap}px;margin-block-end:{look.gap}px}} .w-row{{display:flex;gap:{look.gap}px;align-items:center;flex-wrap:wrap}} .w-tight{{display:flex;gap:8px;align-items:center}}
.w-between{{display:flex;justify-content:space-between;align-items:center;gap:12px}} .w-col{{display:flex;flex-direction:column;gap:{max(8, look.gap // 2)}px}} .w-center{{text-align:center}}
.w-round{{border-radius:50%;object-fit:cover}} .w-cover{{width:100%;object-fit:cover;display:block}} .w-mute{{color:{look.soft}}} .w-small{{font-size:.85em}} .w-big{{font-size:{rng.choice((20, 22, 24, 28, 32))}px;font-weight:{rng.choice((400, 600, 700))};line-height:1.25}}
.w-section{{padding-block:{rng.choice((28, 40, 56, 72))}px}} .w-flat{{list-style:none;margin:0;padding:0}} .w-line>*+*{{border-top:1px solid {look.border}}} .w-line>*{{padding-block:{rng.choice((6, 8, 10, 12))}px}}
.w-dot{{display:inline-block;width:9px;height:9px;border-radius:50%}} .w-chip{{display:inline-flex;align-items:center;justify-content:center;border-radius:{rng.choice(("50%", "8px", "4px"))};flex:none}} .w-bubble{{padding:8px 14px;border-radius:14px;max-width:75%;width:fit-content}}
.w-code{{{rng.choice(("background:#0b1020;color:#d6deeb", "background:#f4f5f7;color:#333", "background:#282c34;color:#abb2bf", "background:#fffbe6;color:#222;border:1px solid #ccc"))};padding:14px;border-radius:{min(look.radius, 8)}px;overflow:hidden;font-family:monospace;font-size:13px;line-height:1.5}} .w-code code{{background:none!important;color:inherit!important;padding:0!important;font-size:inherit!important;border:0!important}}
.w-hero{{position:relative;overflow:hidden}} .w-switch{{width:36px;height:20px;border-radius:10px;background:{look.border};display:inline-block;position:relative;flex:none}} .w-switch:after{{content:"";position:absolute;top:2px;left:2px;width:16px;height:16px;border-radius:50%;background:#fff}} .w-switch.w-yes{{background:{look.primary}}} .w-switch.w-yes:after{{left:18px}}
"""
    if look.font:
        css += f"body,input,button,select,textarea{{font-family:{look.font}}}\n"
    if look.rtl:
        css += "body,input,button{font-family:'DejaVu Sans',Arial,sans-serif}\n"
    if not look.own:
        if look.framework in ("milligram", "water"):
            css += f".w-card{{border:1px solid {look.border};border-radius:{look.radius}px;padding:{look.gap}px;margin-bottom:0}} body{{max-width:none!important;padding:0!important}}\n"
            css += (
                f".w-badge{{padding:2px 8px;border-radius:10px;background:{look.primary};color:#fff;font-size:12px}}\n"
            )
        if look.framework == "pico":
            css += f".w-badge{{padding:2px 8px;border-radius:10px;background:{look.primary};color:#fff;font-size:12px}} article{{margin:0}} button,.w-btn{{width:auto;margin:0}}\n"
        if look.framework in ("bulma", "pico") and look.size < 16:
            css += f"html{{font-size:{look.size}px}}\n"
        if look.framework in ("bootstrap", "adminkit", "bulma", "pico") and not look.dark and rng.random() < 0.5:
            css += f"body{{background:{look.background}}}\n"
        return css
    pad = rng.choice((12, 16, 20, 24))
    return (
        css
        + f"""
body{{background:{look.background};color:{look.ink};font-size:{look.size}px;line-height:{rng.choice((1.3, 1.4, 1.5, 1.6))}}}
h1,h2,h3,h4,h5{{margin:0 0 .5em;line-height:1.2;font-weight:{rng.choice((400, 600, 700, 700))}}} h1{{font-size:{rng.choice((28, 32, 36, 40))}px}} h2{{font-size:{rng.choice((22, 24, 28, 30))}px}} h3{{font-size:{rng.choice((18, 20, 22))}px}} h4,h5{{font-size:{rng.choice((15, 16, 18))}px}} p{{margin:0 0 .8em}}
a{{color:{look.primary};{rng.choice(("", "text-decoration:none"))}}} img{{max-width:100%}}
.w-card{{background:{look.surface};{rng.choice((f"border:1px solid {look.border};", "", f"border:1px solid {look.border};"))}border-radius:{look.radius}px;box-shadow:{look.shadow}}}
.w-card>.w-body{{padding:{pad}px}} .w-card>.w-head{{padding:{pad * 2 // 3}px {pad}px;{rng.choice((f"border-bottom:1px solid {look.border};", "", f"background:rgba(127,127,127,.08);border-bottom:1px solid {look.border};"))}font-weight:600}}
.w-btn{{display:inline-block;border:1px solid {look.border};background:{look.surface};color:{look.ink};padding:{rng.choice((5, 7, 9, 11))}px {rng.choice((12, 16, 20, 24))}px;border-radius:{rng.choice((look.radius, min(look.radius, 6), 24))}px;font-size:{rng.choice((13, 14, 15, 16))}px;text-decoration:none;cursor:pointer;line-height:1.3}}
.w-btn.w-main-btn{{background:{look.primary};border-color:{look.primary};color:#fff;font-weight:{rng.choice((400, 600))}}} .w-btn.w-line-btn{{background:none;border-color:{look.primary};color:{look.primary}}} .w-btn.w-text-btn{{background:none;border-color:transparent;color:{look.primary}}}
.w-input{{width:100%;border:1px solid {look.border};background:{look.background};color:{look.ink};padding:{rng.choice((6, 8, 10, 12))}px {rng.choice((8, 10, 12, 14))}px;border-radius:{min(look.radius, rng.choice((4, 8, 12)))}px;font-size:{look.size - 1}px}}
label{{display:{rng.choice(("block", "block", "inline-block"))};margin-bottom:4px;font-size:{look.size - 1}px;font-weight:{rng.choice((400, 600))}}}
table{{border-collapse:collapse;width:100%}} th,td{{text-align:start;padding:{rng.choice((5, 8, 10, 12))}px {rng.choice((6, 10, 14))}px;{rng.choice((f"border-bottom:1px solid {look.border}", f"border-bottom:1px solid {look.border}", f"border:1px solid {look.border}", ""))}}} th{{{rng.choice(("background:rgba(127,127,127,.12)", f"color:{look.soft};font-size:.85em", "", "text-transform:uppercase;font-size:12px"))}}} {rng.choice(("tbody tr:nth-child(odd){background:rgba(127,127,127,.07)}", "", ""))}
.w-badge{{display:inline-block;padding:2px {rng.choice((6, 8, 10))}px;border-radius:{rng.choice((3, 6, 12))}px;font-size:12px;color:#fff;line-height:1.4}} .w-progress{{height:{rng.choice((4, 6, 8, 12, 16))}px;background:rgba(127,127,127,.2);border-radius:{rng.choice((0, 4, 8))}px;overflow:hidden}} .w-progress>div{{height:100%;background:{look.primary}}}
.w-alert{{padding:12px 16px;border-radius:{look.radius}px;margin-bottom:12px}} .w-tabs{{display:flex;gap:4px;border-bottom:1px solid {look.border};margin-bottom:16px}} .w-tabs a{{padding:8px 14px;text-decoration:none;color:{look.soft}}} .w-tabs a.w-on{{color:{look.primary};border-bottom:2px solid {look.primary}}}
.w-pages{{display:flex;gap:{rng.choice((0, 4, 8))}px;list-style:none;padding:0}} .w-pages a{{display:block;padding:5px 11px;border:1px solid {look.border};text-decoration:none}} .w-crumbs{{display:flex;gap:8px;list-style:none;padding:0;font-size:.9em;color:{look.soft}}}
"""
    )
