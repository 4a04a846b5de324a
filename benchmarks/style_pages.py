"""Pages of one design system, to fine-tune on and to measure with: `python benchmarks/style_pages.py DIR`.

The service of a harbour that does not exist: square, heavy-ruled, serif headings, one yellow. Its style sheet, its markup and
its page templates were written for this measurement and stand in no other data. DIR/learn gets 200 pages of ten templates,
DIR/held 30 pages: 20 of the same templates with other content, 10 of two templates that no page to learn from has.
Everything follows from the seed.
"""

import argparse
import random
from collections.abc import Callable
from html import escape as e
from pathlib import Path

from watersmeet.pipelines.data.generator.words import Words

CSS = """
*{box-sizing:border-box} body{margin:0;background:#fbfaf6;color:#16232b;font:17px/1.45 'Liberation Sans',Arial,sans-serif}
h1,h2,h3{font-family:'Liberation Serif',Georgia,serif;line-height:1.15;margin:0 0 14px;font-weight:700} h1{font-size:40px} h2{font-size:26px} h3{font-size:20px}
p{margin:0 0 14px} a{color:#0a4a6b} ul,ol,dl,dd,fieldset{margin:0;padding:0;border:0;list-style:none}
.mast{background:#0d2a3a;color:#fff;border-bottom:8px solid #f2b705;padding:14px 32px;display:flex;flex-wrap:wrap;gap:8px 28px;align-items:center} .mast a{color:#fff;text-decoration:none}
.mast .sign{font:700 22px 'Liberation Serif',serif;display:flex;gap:12px;align-items:center} .mast .sign i{width:26px;height:26px;background:#f2b705;transform:rotate(45deg)}
.mast ul{display:flex;flex-wrap:wrap;gap:6px 22px;margin-left:auto}
.trail{padding:12px 32px;font-size:14px;color:#50626c} .trail a{margin-right:8px}
.page{padding:8px 32px 40px;max-width:1120px} .two{display:grid;grid-template-columns:250px 1fr;gap:44px} .wide{display:grid;grid-template-columns:2fr 1fr;gap:44px}
.side{border-top:4px solid #0d2a3a} .side a{display:block;padding:10px 0;border-bottom:1px solid #c9d1d4;text-decoration:none} .side .here{font-weight:700;color:#16232b;border-left:6px solid #f2b705;padding-left:10px}
.go{display:inline-block;background:#0a6b4f;color:#fff;border:0;border-bottom:4px solid #06402f;padding:12px 22px;font:700 17px 'Liberation Sans',sans-serif;text-decoration:none;margin:6px 12px 6px 0}
.go.soft{background:#e3e7e4;color:#16232b;border-bottom-color:#9aa5a0}
.slab{background:#fff;border:2px solid #0d2a3a;padding:20px 22px} .slab.tint{background:#eaf1ee;border-color:#eaf1ee} .slabs{display:grid;grid-template-columns:repeat(3,1fr);gap:22px;margin-bottom:26px}
.say{border-left:8px solid #0a4a6b;padding:10px 18px;margin:0 0 22px;background:#eef3f5} .say.warn{border-color:#b3261e;background:#fbeceb}
.ask label{display:block;font-weight:700;margin:0 0 4px} .ask .hint{display:block;font-size:15px;color:#50626c;margin-bottom:6px} .ask div{margin-bottom:20px}
.ask input[type=text],.ask select,.ask textarea{width:100%;max-width:420px;border:2px solid #16232b;background:#fff;padding:9px 10px;font:17px 'Liberation Sans',sans-serif;border-radius:0}
.ask .pick{display:flex;gap:14px;align-items:center;margin-bottom:12px} .ask .pick input{width:26px;height:26px;margin:0;flex:none} .ask .pick label{font-weight:400;margin:0}
.facts div{display:grid;grid-template-columns:34% 1fr auto;gap:18px;padding:13px 0;border-bottom:1px solid #c9d1d4} .facts dt{font-weight:700}
.jobs li{display:flex;justify-content:space-between;gap:16px;padding:13px 0;border-bottom:1px solid #c9d1d4} .mark{font:700 13px 'Liberation Sans',sans-serif;padding:3px 10px;letter-spacing:.5px;text-transform:uppercase;background:#d6e6f0;color:#0a4a6b;white-space:nowrap;height:fit-content}
.mark.ok{background:#cfe8dd;color:#06402f} .mark.no{background:#f6d7d5;color:#7d1510}
table{border-collapse:collapse;width:100%;margin-bottom:24px} th{text-align:left;border-bottom:3px solid #0d2a3a;padding:9px 14px 9px 0} td{border-bottom:1px solid #c9d1d4;padding:10px 14px 10px 0} .num{text-align:right}
.figure{font:700 44px 'Liberation Serif',serif;color:#0a4a6b;line-height:1.1}
.hit{padding:18px 0;border-bottom:1px solid #c9d1d4} .hit h3{margin-bottom:4px} .hit small{color:#50626c}
.line li{border-left:4px solid #0a4a6b;padding:0 0 22px 22px;margin-left:8px} .line time{display:block;font-size:14px;color:#50626c}
.foot{background:#e3e7e4;border-top:4px solid #0d2a3a;padding:26px 32px;display:flex;flex-wrap:wrap;gap:20px 60px;font-size:15px} .foot a{display:block;margin-bottom:6px}
@media(max-width:700px){h1{font-size:30px}.two,.wide,.slabs{display:block}.slab{margin-bottom:14px}.mast,.trail,.page,.foot{padding-left:16px;padding-right:16px}.mast ul{margin-left:0}.facts div{grid-template-columns:1fr auto}.facts dd{grid-column:1}}
"""

MENU = "Berths|Pilots|Cargo|Fees|Tides|Notices|Permits|Crew|Lost property|Customs|Weather|Appeals".split("|")
DEEDS = (
    "Start now|Continue|Save and come back|Find a berth|Apply|Pay the fee|Send|Check answers|Book|Ask for help".split(
        "|"
    )
)
STATES = (
    ("In order", "ok"),
    ("Due", ""),
    ("Refused", "no"),
    ("Not begun", ""),
    ("Paid", "ok"),
    ("Under review", ""),
    ("Late", "no"),
)
ASKED = "Name of the ship|Call sign|Length in metres|Port of origin|Captain|Telephone|Day of arrival|Agent|Cargo|Draught|Flag|E-mail".split(
    "|"
)


class Desk:
    """Parts of a page, with words and numbers from one generator."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(f"harbour {seed}")
        self.words = Words(self.rng)

    def some(self, known: list[str], low: int, high: int) -> list[str]:
        return self.rng.sample(known, self.rng.randint(low, high))

    def title(self, low: int = 2, high: int = 6) -> str:
        return e(self.words.title(low, high))

    def text(self, low: int = 1, high: int = 3) -> str:
        return f"<p>{e(self.words.paragraph(low, high))}</p>"

    def buttons(self) -> str:
        soft = f'<a href="#" class="go soft">{self.rng.choice(DEEDS)}</a>' if self.rng.random() < 0.5 else ""
        return f'<div><a href="#" class="go">{self.rng.choice(DEEDS)}</a>{soft}</div>'

    def mark(self) -> str:
        state, tone = self.rng.choice(STATES)
        return f'<span class="mark {tone}">{state}</span>'

    def notice(self, share: float = 0.4) -> str:
        if self.rng.random() > share:
            return ""
        return f'<div class="say {self.rng.choice(("", "", "warn"))}"><b>{self.title()}</b><br>{e(self.words.sentence())}</div>'

    def field(self, label: str) -> str:
        hint = f'<span class="hint">{e(self.words.sentence(3, 8))}</span>' if self.rng.random() < 0.4 else ""
        kind = self.rng.random()
        given = e(self.words.title(1, 2)) if self.rng.random() < 0.4 else ""
        if kind < 0.7:
            control = f'<input type="text" value="{given}">'
        elif kind < 0.87:
            control = f"<select><option>{e(self.words.title(1, 2))}</option></select>"
        else:
            control = f'<textarea rows="4">{given}</textarea>'
        return f"<div><label>{e(label)}</label>{hint}{control}</div>"

    def picks(self, kind: str) -> str:
        names = [self.title(1, 4) for _ in range(self.rng.randint(2, 6))]
        return "".join(f'<p class="pick"><input type="{kind}" name="a"><label>{name}</label></p>' for name in names)

    def side(self) -> str:
        names = self.some(MENU, 4, 8)
        return (
            '<nav class="side">'
            + "".join(f'<a href="#" class="{"here" if i == 1 else ""}">{n}</a>' for i, n in enumerate(names))
            + "</nav>"
        )

    def facts(self, low: int = 3, high: int = 7) -> str:
        change = self.rng.random() < 0.6
        rows = "".join(
            f"<div><dt>{e(name)}</dt><dd>{self.title(1, 4)}</dd>{'<a href=#>Change</a>' if change else ''}</div>"
            for name in self.some(ASKED, low, high)
        )
        return f'<dl class="facts">{rows}</dl>'

    def table(self, columns: int, rows: int) -> str:
        names = self.rng.sample(ASKED, columns - 1)
        head = "".join(f"<th>{e(n)}</th>" for n in names) + '<th class="num">Fee</th>'
        body = "".join(
            "<tr>"
            + "".join(f"<td>{self.title(1, 2)}</td>" for _ in names)
            + f'<td class="num">{self.rng.randint(20, 9000):,}</td></tr>'
            for _ in range(rows)
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def around(self, main: str) -> str:
        menu = "".join(f'<li><a href="#">{n}</a></li>' for n in self.some(MENU, 3, 5))
        trail = "".join(f'<a href="#">{n}</a>' for n in self.some(MENU, 2, 3))
        columns = "".join(
            f"<div>{''.join(f'<a href=#>{n}</a>' for n in self.some(MENU, 2, 4))}</div>" for _ in range(3)
        )
        return (
            f'<header class="mast"><a class="sign" href="#"><i></i>Harbour of {e(self.words.city())}</a><nav><ul>{menu}</ul></nav></header>'
            f'<div class="trail">{trail}</div><main class="page">{main}</main><footer class="foot">{columns}</footer>'
        )


def start(d: Desk) -> str:
    points = "".join(f"<li>– {e(d.words.sentence(3, 9))}</li>" for _ in range(d.rng.randint(2, 5)))
    aside = f'<aside class="slab tint"><h3>{d.title(1, 3)}</h3>{d.text(1, 1)}<a href="#">{d.title(2, 4)}</a></aside>'
    return f'<div class="wide"><div><h1>{d.title()}</h1>{d.text()}<ul>{points}</ul><br>{d.buttons()}</div>{aside}</div>'


def question(d: Desk) -> str:
    kind = d.rng.choice(("radio", "checkbox"))
    return f'{d.notice(0.2)}<form class="ask"><fieldset><h1>{d.title(3, 7)}?</h1>{d.text(1, 1)}{d.picks(kind)}</fieldset>{d.buttons()}</form>'


def details(d: Desk) -> str:
    fields = "".join(d.field(name) for name in d.some(ASKED, 3, 6))
    return f'<h1>{d.title()}</h1>{d.notice(0.3)}<form class="ask">{fields}{d.buttons()}</form>'


def answers(d: Desk) -> str:
    return (
        f"<h1>{d.title(2, 4)}</h1>"
        + "".join(f"<h2>{d.title(1, 3)}</h2>{d.facts()}<br>" for _ in range(d.rng.randint(1, 2)))
        + d.buttons()
    )


def jobs(d: Desk) -> str:
    def block(i: int) -> str:
        items = "".join(f'<li><a href="#">{d.title(2, 5)}</a>{d.mark()}</li>' for _ in range(d.rng.randint(3, 5)))
        return f'<section><h2>{i + 1}. {d.title(1, 3)}</h2><ul class="jobs">{items}</ul></section><br>'

    return f"<h1>{d.title()}</h1>{d.text(1, 1)}" + "".join(block(i) for i in range(d.rng.randint(2, 3)))


def tiles(d: Desk) -> str:
    figures = "".join(
        f'<div class="slab"><div class="figure">{d.rng.randint(2, 980)}</div>{d.title(1, 4)}</div>' for _ in range(3)
    )
    cards = "".join(
        f'<div class="slab tint"><h3>{d.title(1, 3)}</h3>{d.text(1, 1)}<a href="#">{d.title(1, 3)}</a></div>'
        for _ in range(3)
    )
    return f'<h1>{d.title()}</h1>{d.notice()}<div class="slabs">{figures}</div><div class="slabs">{cards}</div>'


def notice(d: Desk) -> str:
    parts = "".join(f"<h2>{d.title(2, 4)}</h2>{d.text()}" for _ in range(d.rng.randint(2, 4)))
    return f'<div class="two">{d.side()}<article><h1>{d.title()}</h1>{d.notice(0.7)}{parts}</article></div>'


def results(d: Desk) -> str:
    hits = "".join(
        f'<li class="hit"><h3><a href="#">{d.title(2, 6)}</a></h3>{d.text(1, 1)}<small>{e(d.words.date())}</small></li>'
        for _ in range(5)
    )
    search = f'<form class="ask"><div><label>Search</label><input type="text" value="{d.title(1, 2)}"></div><a href="#" class="go">Find</a></form>'
    return f'<h1>{d.title(1, 3)}</h1><div class="two"><div>{search}</div><ul>{hits}</ul></div>'


def ship(d: Desk) -> str:
    return f'<div class="two">{d.side()}<div><h1>{d.title(1, 3)}</h1><p>{d.mark()}</p>{d.facts(4, 7)}<br>{d.buttons()}</div></div>'


def fees(d: Desk) -> str:
    return f"<h1>{d.title()}</h1>{d.text(1, 2)}{d.table(d.rng.randint(3, 5), d.rng.randint(5, 9))}{d.buttons()}"


def journal(d: Desk) -> str:
    items = "".join(
        f"<li><time>{e(d.words.date())}</time><b>{d.title(2, 5)}</b>{d.text(1, 1)}</li>"
        for _ in range(d.rng.randint(4, 6))
    )
    return f'<div class="wide"><div><h1>{d.title()}</h1><ol class="line">{items}</ol></div><aside class="slab">{d.facts(2, 3)}</aside></div>'


def register(d: Desk) -> str:
    filters = f'<form class="ask"><fieldset><h3>{d.title(1, 2)}</h3>{d.picks("checkbox")}</fieldset>{d.field("Flag")}<a href="#" class="go soft">Apply</a></form>'
    return f'<h1>{d.title(1, 3)}</h1>{d.notice(0.3)}<div class="two"><div>{filters}</div>{d.table(4, d.rng.randint(6, 9))}</div>'


Template = Callable[[Desk], str]
LEARNT: tuple[Template, ...] = (start, question, details, answers, jobs, tiles, notice, results, ship, fees)
UNSEEN: tuple[Template, ...] = (journal, register)


def page(template: Template, seed: str) -> str:
    """The HTML of one page; equal arguments give equal bytes."""
    desk = Desk(seed)
    body = desk.around(template(desk))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>{template.__name__}</title>'
    return f'<!doctype html><html lang="en"><head>{head}<style>{CSS}</style></head><body>{body}</body></html>'


def write_pages(folder: Path, *, learn: int = 200, held: int = 30) -> None:
    """Write both sets of pages; a third of the held-out ones has templates that are in no page to learn from."""
    known = held - held // 3
    sets = {
        "learn": [(LEARNT[i % len(LEARNT)], f"learn {i}") for i in range(learn)],
        "held": [(LEARNT[i % len(LEARNT)], f"held {i}") for i in range(known)]
        + [(UNSEEN[i % len(UNSEEN)], f"unseen {i}") for i in range(held - known)],
    }
    for name, pages in sets.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, (template, seed) in enumerate(pages):
            (folder / name / f"{number:03d}-{template.__name__}.html").write_text(
                page(template, seed), encoding="utf-8"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--learn", type=int, default=200)
    parser.add_argument("--held", type=int, default=30)
    given = parser.parse_args()
    write_pages(given.folder, learn=given.learn, held=given.held)
