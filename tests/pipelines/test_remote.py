"""The client for OpenAI-compatible servers, against small servers written here."""

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from PIL import Image

from watersmeet.core.errors import RemoteError, UsageError
from watersmeet.pipelines.models.remote import RemoteModel, code_block, parse_remote


@pytest.fixture
def serve():
    """`serve(status, body)` starts a server that always answers so; returns its URL and the requests it got."""
    servers = []

    def start(status, body):
        seen = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                seen.append((self.path, json.loads(self.rfile.read(length))))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

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


PICTURE = Image.new("RGB", (4, 3), (10, 20, 30))


def test_the_picture_arrives_and_the_answer_comes_back(serve):
    url, seen = serve(200, {"choices": [{"message": {"role": "assistant", "content": "hello"}}]})
    assert parse_remote(f"openai:some/model@{url}").ask("what?", PICTURE) == "hello"
    path, body = seen[0]
    assert path == "/v1/chat/completions" and body["model"] == "some/model"
    image, text = body["messages"][0]["content"]
    assert text == {"type": "text", "text": "what?"}
    sent = Image.open(io.BytesIO(base64.b64decode(image["image_url"]["url"].split(",", 1)[1])))
    assert sent.size == (4, 3) and sent.convert("RGB").getpixel((0, 0)) == (10, 20, 30)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (500, b"boom\nboom", "answered 500: 'boom boom'"),
        (200, b"<html>not json</html>", "no chat completion"),
        (200, {"choices": []}, "no chat completion"),
        (200, {"choices": [{"message": {"content": None}}]}, "without text"),
        (200, {"choices": [{"message": {"content": "  "}}]}, "without text"),
        (200, b"", "no chat completion: nothing"),
    ],
)
def test_nonsense_is_one_sentence(serve, status, body, says):
    url, _ = serve(status, body)
    with pytest.raises(RemoteError, match=says):
        RemoteModel(name="m", url=url).ask("what?", PICTURE)


def test_a_server_that_is_down_is_named():
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:9/v1 cannot be reached"):
        RemoteModel(name="m", url="http://127.0.0.1:9/v1").ask("what?", PICTURE)


def test_a_silent_server_ends_at_the_time_limit():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as quiet:
        url = f"http://127.0.0.1:{quiet.getsockname()[1]}/v1"
        with pytest.raises(RemoteError, match="did not answer"):
            RemoteModel(name="m", url=url, timeout_s=0.3).ask("what?", PICTURE)


@pytest.mark.parametrize("spec", ["openai:", "openai:name", "openai:@http://x", "openai:name@ftp://x", "openai:n@"])
def test_other_forms_are_refused(spec):
    with pytest.raises(UsageError, match="openai:NAME@URL"):
        parse_remote(spec)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```html\n<p>1</p>\n```", "<p>1</p>"),
        ("Sure!\n```\n<p>1</p>\n```\nbye", "<p>1</p>"),
        ("```css\na{}\n```\n```HTML\n<p>1</p>\n```", "<p>1</p>"),
        ("  <p>1</p> ", "<p>1</p>"),
        ("```html\n<p>cut off", "<p>cut off"),
    ],
)
def test_the_code_is_found_in_the_answer(answer, code):
    assert code_block(answer) == code
