"""One browser for all tests that render (without a Chromium they fail: nothing here may be skipped in silence), small model
servers, and small recordings."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

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
