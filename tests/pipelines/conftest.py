"""One browser for all tests that render (without a Chromium they fail: nothing here may be skipped in silence), small model
servers, and small recordings."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser.find import find_chromium
from watersmeet.pipelines.browser.render import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        find_chromium()
    except RenderError as error:
        pytest.fail(f"this test renders pages and needs a Chromium: {error}", pytrace=False)
    with Browser(timeout_s=60, settle_ms=0) as one:
        yield one


@pytest.fixture
def serve():
    """`serve(status, body)` starts a server that always answers so; returns its URL and the requests it got.

    body: bytes, plain values, or a function from a request to a status and one of those.
    """
    servers = []

    def start(status, body):
        seen = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                request = json.loads(self.rfile.read(length))
                seen.append((self.path, request))
                code, reply = body(request) if callable(body) else (status, body)
                self.send_response(code)
                self.end_headers()
                self.wfile.write(reply if isinstance(reply, bytes) else json.dumps(reply).encode())

            def log_message(self, *args):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def seen():
    """`seen(turns=4, patches=3)`: what could have been seen in a recording of that many turns, with patches of a quarter."""
    from watersmeet.core.geometry import Box
    from watersmeet.pipelines.video_to_spec.observed import Moment, Observed, SeenText
    from watersmeet.pipelines.video_to_spec.spec import Source
    from watersmeet.pipelines.video_to_spec.watch.page import line_of
    from watersmeet.pipelines.video_to_spec.watch.sight import Patches, Sight, Turn

    def turn(number, patches):
        rng = np.random.default_rng(number)
        at = number * 2_000_000
        words = [("Save", f"Field {number}"), ("Name",), (f"Page {number}", "Ada")]
        under, before, after = (
            tuple(line_of(text, Box(x0=20, y0=40 * k + 20, x1=120, y1=40 * k + 36)) for k, text in enumerate(part))
            for part in (words if number else ((), (), words[2]))
        )
        texts = [SeenText(text=line.text, box=line.box) for line in (*under, *before)]
        texts += [SeenText(text=line.text, box=line.box, came=True) for line in after]
        times = [at - 110_000, at, at + 300_000, at - 2_110_000, at - 1_700_000] if number else [0]
        moments = tuple(Moment(time_us=t, frame=t // 40_000, shown_us=t // 40_000 * 40_000) for t in map(abs, times))
        boxes = (Box(x0=10, y0=10, x1=130, y1=50), Box(x0=0, y0=0, x1=640, y1=400))
        return Turn(
            observed=Observed(width=640, height=400, moments=moments, texts=tuple(texts), boxes=boxes),
            patches=Patches(
                data=rng.integers(0, 256, (patches, 3072), dtype=np.uint8),
                coords=rng.integers(0, 8, (patches, 2)),
                time_us=np.full(patches, at, dtype=np.int64),
            ),
            under=under,
            before=before,
            after=after,
            on_screen=frozenset({f"Page {number}", "Name", "Save", "Orders"}),
            areas=boxes[:1],
            pause_s=1.7 if number else 0.0,
            lasting_s=0.3 if number else 0.0,
            point=(60.0, 25.0) if number else None,
            still_s=0.25 if number else None,
            way=200.0 if number else 0.0,
            pressed=number == 2,
            reach=12.5 if number else None,
            scrolled=-40 if number == 2 else 0,
            kept=0.75,
            letters=number == 3,
        )

    def make(turns=4, patches=3):
        source = Source(path="a.mp4", duration_s=2.0 * turns, frames=50 * turns, width=640, height=400)
        listed = tuple(turn(number, 0 if number == 1 else patches) for number in range(turns))
        times = tuple(40_000 * i for i in range(50 * turns))
        return Sight(source=source, times_us=times, turns=listed, notes=(), pointer=True)

    return make


@pytest.fixture
def lined(seen):
    """`lined(under=, before=, after=, place=, point=None, letters=False)`: a turn of 640 x 400 px with these lines, (text, x0, y0,
    x1, y1) each; `place` is what is acted on."""
    from watersmeet.core.geometry import Box
    from watersmeet.pipelines.video_to_spec.watch.page import line_of

    def box(x0, y0, x1, y1):
        return Box(x0=x0, y0=y0, x1=x1, y1=y1)

    def make(*, under=(), before=(), after=(), place, point=None, letters=False):
        lines = [tuple(line_of(text, box(*at)) for text, *at in part) for part in (under, before, after)]
        turn = seen(2).turns[1]
        observed = replace(turn.observed, boxes=(box(0, 0, 8, 8), box(*place)) if letters else (box(*place),))
        return replace(
            turn, observed=observed, under=lines[0], before=lines[1], after=lines[2], point=point, letters=letters
        )

    return make
