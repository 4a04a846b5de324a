"""Variants of a package's own pages: other theme, other words, other size, pictures where scripts from elsewhere would draw.

A page that loads icons or charts from another host shows holes without a network; the same files from packages, or a
drawn chart, take their place.
"""

import random
import re
from html import escape, unescape
from os.path import relpath
from pathlib import Path

from watersmeet.pipelines.data.generator.looks import FONTS, SWATCHES
from watersmeet.pipelines.data.generator.words import Words

_REMOTE = re.compile(r"""(<(?:script|link)\b[^>]*?(?:src|href)=["'])((?:https?:)?//[^"']+)(["'][^>]*>)""", re.I)
_TEXT = re.compile(r">([^<>{}]*[A-Za-z]{2}[^<>{}]*)<")
_LOCAL = (
    (re.compile(r"font-?awesome.*\.css"), "fortawesome-fontawesome-free/css/all.min.css"),
    (re.compile(r"bootstrap-icons.*\.css"), "bootstrap-icons/font/bootstrap-icons.min.css"),
    (re.compile(r"bootstrap@?.*/bootstrap(\.bundle)?(\.min)?\.js"), "bootstrap/dist/js/bootstrap.bundle.min.js"),
    (re.compile(r"bootstrap@?.*\.css"), "bootstrap/dist/css/bootstrap.min.css"),
)
_CHARTS = """<script>addEventListener("load",()=>{let s=%d;const r=()=>(s=(s*16807)%%2147483647)/2147483647;
for(const c of document.querySelectorAll("canvas")){const p=c.parentElement,w=c.width=Math.max(120,p.clientWidth-30),h=c.height=Math.max(100,Math.min(w*0.4,p.clientHeight>140?p.clientHeight-20:220));
c.style.width=w+"px";c.style.height=h+"px";const g=c.getContext("2d"),n=5+Math.floor(r()*8),k=Math.floor(r()*3);g.strokeStyle="#ddd";g.fillStyle="#777";g.font="11px Arial";
for(let i=0;i<5;i++){const y=10+i*(h-30)/4;g.beginPath();g.moveTo(40,y);g.lineTo(w-5,y);g.stroke();g.fillText((5-i)*10+"k",4,y+4)}
const col="hsl("+Math.floor(r()*360)+",65%%,50%%)";g.strokeStyle=g.fillStyle=col;g.lineWidth=3;g.beginPath();
for(let i=0;i<n;i++){const x=50+i*(w-70)/(n-1),y=h-20-r()*(h-40);if(k==1)g.fillRect(x-8,y,16,h-20-y);else if(k==0)g[i?"lineTo":"moveTo"](x,y);else{g.moveTo(x,y);g.arc(x,y,5,0,7)}}
k==0?g.stroke():k==2?g.fill():0}})</script>"""


def localise(html: str, page: Path, packages: Path) -> str:
    """`html` with remote style sheets and scripts replaced by local ones, or taken out where there is none."""

    def swap(match: re.Match[str]) -> str:
        if re.search(
            r"font-?awesome.*\.js", match[2]
        ):  # the style sheet draws the same icons in a fraction of the time
            sheet = relpath(packages / "fortawesome-fontawesome-free/css/all.min.css", page.parent)
            return f'<link rel="stylesheet" href="{sheet}"><script>'
        for pattern, path in _LOCAL:
            if pattern.search(match[2]):
                return (
                    match[1]
                    + relpath(packages / path, page.parent)
                    + re.sub(r'integrity="[^"]*"|crossorigin(="[^"]*")?', "", match[3])
                )
        return ""

    return _REMOTE.sub(swap, html)


def remix(html: str, page: Path, packages: Path, seed: int) -> str:
    """A variant of the page `html` that lies at `page`; pure in its arguments. Seed 0 only makes it local."""
    html = localise(html, page, packages)
    head = ""
    if "<canvas" in html:
        head += _CHARTS % (seed + 7)
    if seed:
        rng = random.Random(f"remix {seed} {page.name}")
        bootstrap = "bootstrap" in html or "startbootstrap" in str(page)
        if bootstrap and rng.random() < 0.55:
            theme = packages / "bootswatch" / "dist" / rng.choice(SWATCHES) / "bootstrap.min.css"
            head += f'<link rel="stylesheet" href="{relpath(theme, page.parent)}">'
        if rng.random() < 0.4:
            font = rng.choice(FONTS)
            folder = relpath(packages / f"fontsource-{font}", page.parent)
            head += "".join(f'<link rel="stylesheet" href="{folder}/{w}.css">' for w in (400, 700))
            head += f"<style>body,h1,h2,h3,h4,h5,button,input{{font-family:'{font.replace('-', ' ').title()}',sans-serif!important}}</style>"
        if rng.random() < 0.5:
            head += f"<style>html{{zoom:{rng.choice((0.8, 0.9, 0.95, 1.05, 1.1, 1.2))}}}</style>"
        if rng.random() < 0.75:
            html = _other_words(html, rng)
    at = html.lower().rfind("</head>")
    return html[:at] + head + html[at:] if at >= 0 else head + html


def _other_words(html: str, rng: random.Random) -> str:
    """Other words in the same places, of about the same length; scripts and styles are left alone."""
    words = Words(rng)
    start = html.lower().find("<body")
    body = html[start:] if start >= 0 else html

    def swap(match: re.Match[str]) -> str:
        old = unescape(match[1])
        if rng.random() < 0.25:
            return match[0]
        count = max(1, round(len(old.split()) * rng.uniform(0.6, 1.5)))
        new = words.words(count)
        lead, tail = old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]
        return f">{lead}{escape(new[:1].upper() + new[1:])}{tail}<"

    pieces = re.split(r"(<(?:script|style|pre|svg)\b.*?</(?:script|style|pre|svg)>)", body, flags=re.S | re.I)
    pieces = [piece if i % 2 else _TEXT.sub(swap, piece) for i, piece in enumerate(pieces)]
    return html[: max(start, 0)] + "".join(pieces)
