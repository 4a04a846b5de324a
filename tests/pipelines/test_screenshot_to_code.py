"""The pipeline from a file to a folder of results, with a small untrained model: what it writes must hold all the same."""

import io
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from watersmeet.core.config import preset
from watersmeet.core.errors import CheckpointError, DecodeError, RemoteError, RenderError, UsageError
from watersmeet.core.model import Model
from watersmeet.pipelines.data.samples import encoders as make_encoders
from watersmeet.pipelines.layout.tree import Node
from watersmeet.pipelines.models import open_model
from watersmeet.pipelines.models.local import LocalModel
from watersmeet.pipelines.models.remote import RemoteModel
from watersmeet.pipelines.screenshot_to_code import pipeline as module
from watersmeet.pipelines.screenshot_to_code.pipeline import ScreenshotToCode
from watersmeet.pipelines.screenshot_to_code.settings import Settings
from watersmeet.plugins.registry import get_registry

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    encoders = make_encoders()
    config = preset("micro").replace(vocab_size=encoders["text"].vocab_size, output_modality="text")
    registry = get_registry()
    embedders = {name: registry.embedder(name, config.hidden_size, e.settings) for name, e in encoders.items()}
    return LocalModel(name="untrained", model=Model(config, embedders).eval(), encoders=encoders, recipe={})


@pytest.fixture(scope="module")
def shot(tmp_path_factory):
    """A drawn page: a bar, a heading, hostile text, a button."""
    picture = Image.new("RGB", (640, 360), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, 640, 48), fill="#224488")
    font = ImageFont.load_default(22)
    draw.text((20, 12), "Harbour office", fill="white", font=font)
    draw.text((20, 90), "Opening hours", fill="#111111", font=font)
    draw.text((20, 140), HOSTILE, fill="#333333", font=font)
    draw.rounded_rectangle((20, 220, 180, 264), 6, fill="#2266cc")
    draw.text((48, 230), "Book now", fill="white", font=font)
    path = tmp_path_factory.mktemp("shot") / "office.png"
    picture.save(path)
    return path


def run(path, model, out, **settings):
    said = []
    result = ScreenshotToCode(settings).run([path], model, out, lambda what, share: said.append((what, share)))
    return result, said


@pytest.fixture(scope="module")
def done(model, shot, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    result, said = run(shot, model, out, max_tokens=120)
    return out, result, said


def test_a_run_writes_code_tree_render_scores_and_report(done):
    out, result, said = done
    names = {p.name for p in out.iterdir()}
    assert {"index.html", "layout.json", "render.png", "scores.json", "report.html", "input.png"} <= names
    assert all((out / name).is_file() for name in result.files)
    assert result.summary.startswith(str(out / "report.html")) and "LOOK" in result.summary
    shares = [share for _, share in said]
    assert shares == sorted(shares) and shares[-1] == 1.0
    scores = json.loads((out / "scores.json").read_text())
    assert scores["basis"] == "picture" and all(v is None or 0 <= v <= 1 for v in scores["scores"].values())
    assert scores["scores"]["role"] is None
    assert Image.open(out / "render.png").size == (640, 360)


def test_every_read_line_is_in_the_page_and_markup_in_it_stays_text(done):
    out, _, _ = done
    html = (out / "index.html").read_text()
    assert "Harbour office" in html and "Opening hours" in html
    assert "<script" not in html.lower() and "&lt;script&gt;" in html.lower()
    assert "<script" not in (out / "report.html").read_text().lower()
    tree = Node.from_json(json.loads((out / "layout.json").read_text()))
    words = " ".join(line.text for node in tree.walk() for line in node.lines)
    assert "Book now" in words


def test_nothing_is_absolute_and_the_report_says_what_it_compared(done):
    out, _, _ = done
    code = "".join(p.read_text() for p in out.iterdir() if p.suffix in (".html", ".css") and p.name != "report.html")
    assert "position:absolute" not in code.replace(" ", "")
    report = (out / "report.html").read_text()
    assert "there is no reference page" in report and "render.png" in report and "difference.png" in report


def test_without_a_browser_the_code_is_written_and_the_report_says_so(model, shot, tmp_path, monkeypatch):
    def missing():
        raise RenderError("no Chromium was found; install one")

    monkeypatch.setattr(module, "find_chromium", missing)
    result, _ = run(shot, model, tmp_path / "out", max_tokens=40)
    assert (tmp_path / "out" / "index.html").is_file() and not (tmp_path / "out" / "render.png").exists()
    assert any("no Chromium was found" in w for w in result.warnings)
    assert "Nothing was rendered" in (tmp_path / "out" / "report.html").read_text()
    assert "nothing was rendered" in result.summary


def bad_files():
    png = io.BytesIO()
    Image.effect_noise((200, 200), 80).save(png, "PNG")

    def image(size, color="white", **how):
        buffer = io.BytesIO()
        Image.new("RGB", size, color).save(buffer, "PNG", **how)
        return buffer.getvalue()

    return {
        "not-an-image.png": (b"hello there", "not"),
        "empty.png": (b"", "empty|zero|0 bytes"),
        "truncated.png": (png.getvalue()[:3000], "truncated|damaged"),
        "dot.png": (image((1, 1)), "1 x 1"),
        "blank.png": (image((640, 360), "#eef"), "blank"),
    }


@pytest.mark.parametrize("name", list(bad_files()))
def test_a_bad_picture_is_one_sentence_that_names_it_and_leaves_nothing(name, model, tmp_path):
    content, reason = bad_files()[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DecodeError, match=reason) as caught:
        run(path, model, tmp_path / "out")
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_twenty_thousand_pixels_a_side_are_refused_before_decoding(model, tmp_path):
    from struct import pack
    from zlib import compress, crc32

    def chunk(kind, data):
        return pack(">I", len(data)) + kind + data + pack(">I", crc32(kind + data))

    header = chunk(b"IHDR", pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", compress(bytes(100)))
    path = tmp_path / "huge.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b""))
    with pytest.raises(DecodeError, match="400,000,000 pixels"):
        run(path, model, tmp_path / "out")


def test_a_missing_file_is_named(model, tmp_path):
    with pytest.raises(DecodeError, match=r"nowhere\.png"):
        run(tmp_path / "nowhere.png", model, tmp_path / "out")


@pytest.fixture
def server():
    """`server(text)` starts a chat server that always answers with `text`; returns the model behind it."""
    running = []

    def start(text):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"choices": [{"message": {"content": text}}]}).encode())

            def log_message(self, *args):
                pass

        made = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        running.append(made)
        return open_model(f"openai:page-writer@http://127.0.0.1:{made.server_port}/v1")

    yield start
    for made in running:
        made.shutdown()
        made.server_close()


PAGE = """Here you are:
```html
<!doctype html><html><head><style>body{margin:0;font:22px Arial} header{background:#224488;color:#fff;padding:12px 20px}
h1{font-size:22px;margin:30px 20px} button{margin:100px 20px}</style></head><body><header>Harbour office</header>
<h1>Opening hours</h1><button>Book now</button></body></html>
```
"""


def test_a_server_gets_the_same_job_and_the_same_checks(server, shot, tmp_path):
    model = server(PAGE)
    assert isinstance(model, RemoteModel)
    result, _ = run(shot, model, tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text().startswith("<!doctype html>")
    assert 0.1 < result.scores["LOOK"] < 1 and (tmp_path / "out" / "layout.json").is_file()
    kinds = {n.kind for n in Node.from_json(json.loads((tmp_path / "out" / "layout.json").read_text())).walk()}
    assert {"header", "h1", "button"} <= kinds


def test_a_server_page_becomes_other_targets_through_its_tree(server, shot, tmp_path):
    run(shot, server(PAGE), tmp_path / "out", target="react")
    written = {p.suffix for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert ".jsx" in written


def test_a_server_that_answers_nonsense_leaves_nothing(server, shot, tmp_path):
    with pytest.raises(RemoteError, match="without HTML"):
        run(shot, server("I cannot help with that."), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_settings_are_checked_and_suggested():
    assert Settings.parse({"target": "react", "max_tokens": "64", "alternatives": "no"}) == replace(
        Settings(), target="react", max_tokens=64, alternatives=False
    )
    for wrong, says in (
        ({"targt": "html"}, "did you mean 'target'"),
        ({"target": "vue"}, "choose one of"),
        ({"max_tokens": "many"}, "expected int"),
        ({"max_tokens": 3}, "16 to 8192"),
        ({"temperature": -1}, "0 to 2"),
        ({"alternatives": "maybe"}, "true or false"),
    ):
        with pytest.raises(UsageError, match=says):
            Settings.parse(wrong)


def test_two_pictures_are_refused(model, shot, tmp_path):
    with pytest.raises(UsageError, match="one picture"):
        ScreenshotToCode().run([shot, shot], model, tmp_path / "out", lambda what, share: None)


def test_unknown_models_are_suggested():
    with pytest.raises(CheckpointError, match="did you mean 'nano'"):
        open_model("nanno")
    with pytest.raises(CheckpointError, match="no model"):
        open_model("some/folder/that/is/not/there")
