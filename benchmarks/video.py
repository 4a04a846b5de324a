"""What two minutes of screen recording cost: tokens, speed and memory, of a typical one, an animated one and a still one.

    .venv/bin/python -P benchmarks/video.py --out DIR [--only NAME] [--seconds 120] [--hour RATE]

The recordings are composed at 1280 x 720, 30 frames a second, and encoded to H.264 once; a second start uses the files that
are there. `--hour RATE` reads the typical one again and again for an hour of video at RATE frames a second, whose packets are
those of the two minutes with later times. Every recording is measured in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from watersmeet.pipelines.data.recording import Recording, font, write_video

SIZE = (1280, 720)
MENU = ("Rename", "Duplicate", "Move to...", "Archive", "Delete")
WORDS = (
    "invoice customer report monthly revenue account settings team project review approve export import draft".split()
)
ROOT = Path(__file__).parents[1]


def text_page(title: str, seed: int, height: int = 720, colour: str = "#2f4b8f") -> Image.Image:
    """A page with a bar, a list at the left and a table."""
    rng = np.random.default_rng(seed)
    page = Image.new("RGB", (SIZE[0], height), "white")
    pen = ImageDraw.Draw(page)
    pen.rectangle((0, 0, SIZE[0], 56), fill=colour)
    pen.text((24, 16), title, fill="white", font=font(22))
    pen.rectangle((0, 56, 200, height), fill="#f2f4f8")
    for i in range(8):
        pen.text((24, 84 + 40 * i), str(rng.choice(WORDS)).title(), fill="#444444", font=font(16))
    for row, y in enumerate(range(90, height - 30, 34)):
        pen.line((224, y + 28, SIZE[0] - 24, y + 28), fill="#dddddd")
        for column in range(5):
            word = f"{rng.choice(WORDS)} {rng.integers(10, 9999)}"
            pen.text((232 + 200 * column, y + 4), word, fill="#222222", font=font(15 if row else 16))
    return page


def dialog(title: str) -> Image.Image:
    """A box that asks for two values."""
    box = Image.new("RGB", (480, 300), "white")
    pen = ImageDraw.Draw(box)
    pen.rectangle((0, 0, 479, 299), outline="#888888")
    pen.text((24, 20), title, fill="#222222", font=font(20))
    for i, label in enumerate(("Name", "E-mail")):
        pen.text((24, 70 + 80 * i), label, fill="#666666", font=font(14))
        pen.rectangle((24, 92 + 80 * i, 456, 126 + 80 * i), outline="#aaaaaa")
    pen.rectangle((356, 246, 456, 280), fill="#2f4b8f")
    pen.text((384, 254), "Save", fill="white", font=font(16))
    return box


def typical(seconds: int = 120) -> Recording:
    """A demonstration: pages, menus, dialogs that are filled in, scrolling, waiting; half a minute long, then again with
    other words and pages."""
    film = Recording(size=SIZE)
    dashboard = Image.open(ROOT / "examples/demo.png").convert("RGB").crop((0, 0, *SIZE))
    film.move(0.0, 640, 500)
    for part, start in enumerate(range(0, seconds, 30)):
        table, long = text_page("Invoices", 10 + part), text_page("Reports", 20 + part, 2600, "#1f6f5c")
        film.show(start, start + 5, dashboard)
        film.move(start + 2.0, 110, 188)
        film.move(start + 4.8, 120, 250, 1.2)
        film.show(start + 5, start + 17, table)
        film.clock(start + 5, start + 17, (1180, 18))
        film.spin(start + 5, start + 6.5, (700, 400))
        film.move(start + 7.2, 900, 140)
        film.drop_down(start + 7.5, start + 7.8, (820, 150), MENU, fade=0.1 * (part % 2))
        film.move(start + 9.0, 500, 300)
        film.show(start + 9.3, start + 16, dialog("New customer"), (400, 200))
        film.type_text(start + 10.0, "Maria Lindqvist", (432, 300), until=start + 16, seed=part)
        film.type_text(
            start + 13.2, f"maria{part}@example.org", (432, 380), until=start + 16, seed=50 + part, a_second=9
        )
        film.move(start + 15.7, 800, 460)
        film.show(start + 17, start + 19, long.crop((0, 0, *SIZE)))
        film.scroll(start + 19, start + 20.2, long, (0, 700), until=start + 22)
        film.scroll(start + 22, start + 23, long, (700, 1500), until=start + 28)
        film.move(start + 24.5, 300, 600)
        film.drop_down(start + 25.0, start + 25.3, (300, 420), MENU[:3])
        film.show(start + 28, start + 30, dashboard)
    return film


def animated(seconds: int = 120) -> Recording:
    """A page on which a film of 640 x 360 plays, a bar grows and a banner slides by."""
    film, rng = Recording(size=SIZE), np.random.default_rng(5)
    film.show(0, seconds, text_page("Live", 3))
    scenes = [Image.fromarray(rng.integers(0, 255, (18, 32, 3), np.uint8)).resize((1280, 720)) for _ in range(12)]

    def play(frame: Image.Image, age: float) -> None:
        scene, inside = divmod(age, 5.0)
        x, y = round(60 * inside), round(30 * inside)
        frame.paste(scenes[int(scene) % 12].crop((x, y, x + 640, y + 360)), (480, 200))
        pen = ImageDraw.Draw(frame)
        pen.rectangle((480, 580, 480 + int(640 * (age % 30) / 30), 588), fill=(200, 30, 30))
        pen.text(
            (1280 - int(age * 90) % 1800, 640), "news that slides by without an end", fill="#222222", font=font(22)
        )

    film.show(0, seconds, play)
    return film


def still(seconds: int = 120) -> Recording:
    """One page; a caret blinks."""
    film = Recording(size=SIZE)
    film.show(0, seconds, text_page("Nothing happens", 7))
    film.type_text(1.0, "", (432, 300), until=seconds)
    return film


SCENES = {"typical": typical, "animated": animated, "still": still}


def stretch(source: Path, target: Path, seconds: int, rate: float) -> None:
    """The packets of `source` over and over with rising times, `rate` frames a second, until `seconds` are full."""
    import av

    with av.open(str(target), "w") as out:
        stream, number = None, 0
        while number < seconds * rate:
            with av.open(str(source)) as container:
                own = container.streams.video[0]
                stream = stream or out.add_stream_from_template(own)
                packets = sorted((p for p in container.demux(own) if p.dts is not None), key=lambda p: p.dts)
                order = {pts: i for i, pts in enumerate(sorted(p.pts for p in packets))}
                for i, packet in enumerate(packets):
                    # order of decoding and order of showing differ, by at most a few frames
                    packet.pts = round((number + order[packet.pts] + 8) / rate / own.time_base)
                    packet.dts = round((number + i) / rate / own.time_base)
                    packet.duration = round(1 / rate / own.time_base)
                    packet.stream = stream
                    out.mux(packet)
                number += len(packets)


def measure(path: Path) -> dict[str, Any]:
    """Read one file to its end as `embed` would, keeping nothing."""
    import cv2

    from watersmeet.tokenizers.video.encoder import Encoder
    from watersmeet.tokenizers.video.process import Video

    cv2.setNumThreads(1)
    encoder = Encoder({"max_tokens": 10**9})
    session, tokens, spans, stamps = encoder.open(), 0, 0, []
    began, used = time.perf_counter(), time.process_time()
    with Video(path) as video:
        for frame in video.frames():
            for span in session.push(frame):
                tokens, spans = tokens + span.n, spans + 1
                stamps.append((int(span.time_us[0]), span.n))
        rest = session.close(video.end_us)
        tokens, spans = tokens + sum(span.n for span in rest), spans + len(rest)
        seconds, count, head = video.end_us / 1e6, video.count, video.head
    wall, here = time.perf_counter() - began, time.process_time() - used
    child = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "frames": count,
        "tokens": tokens,
        "instants": spans,
        "bound": encoder.most_tokens(head.width, head.height, seconds),
        "wall": wall,
        "cpu_here": here,
        "cpu_child": child.ru_utime + child.ru_stime,
        "mb_here": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "mb_child": child.ru_maxrss / 1024,
        "stamps": stamps if count < 20_000 else [],
    }


def menus_found(film: Recording, stamps: list[list[int]]) -> tuple[int, int]:
    """(found, shown): menus at whose time patches were given out, while they were open."""
    menus = [event for event in film.events if event.kind == "dropdown"]
    found = [any(m.start - 0.001 <= t / 1e6 < m.end - 0.02 and n >= 6 for t, n in stamps) for m in menus]
    return sum(found), len(menus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=sorted(SCENES))
    parser.add_argument("--seconds", type=int, default=120, help="a multiple of 30")
    parser.add_argument("--hour", type=float, metavar="RATE")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one)))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    head = "recording|frames|tokens|instants|bound|menus of 300 ms|times real time|processor time, s (decode, rest)|peak memory, MB (decode, rest)".split("|")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for name in [given.only] if given.only else SCENES:
        film = SCENES[name](given.seconds)
        path = given.out / f"{name}-{given.seconds}.mp4"
        if not path.exists():
            write_video(path.with_name(f"part-{path.name}"), film.frames(given.seconds))
            path.with_name(f"part-{path.name}").rename(path)
        if given.hour:
            long = given.out / f"{name}-hour.mp4"
            stretch(path, long, 3600, given.hour)
            path = long
        command = [sys.executable, "-P", __file__, "--out", str(given.out), "--one", str(path)]
        row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found, shown = menus_found(film, row["stamps"])
        print(
            f"| {name}, {row['seconds']:.0f} s | {row['frames']:,} | {row['tokens']:,} | {row['instants']:,} | {row['bound']:,} "
            f"| {f'{found} of {shown}' if shown and row['stamps'] else '-'} | {row['seconds'] / row['wall']:.1f} "
            f"| {row['cpu_child']:.1f}, {row['cpu_here']:.1f} | {row['mb_child']:.0f}, {row['mb_here']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
