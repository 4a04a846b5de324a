"""The client for OpenAI-compatible servers, against small servers written here."""

import base64
import io

import pytest
from PIL import Image

from watersmeet.core.errors import RemoteError, UsageError
from watersmeet.pipelines.models.remote import RemoteModel, code_block, parse_remote

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


def test_texts_and_pictures_keep_their_order_and_a_schema_is_sent_once_a_server_takes_it(serve):
    good = {"choices": [{"message": {"content": "{}"}}]}
    schema = {"type": "object"}
    for refuses in (False, True):
        url, seen = serve(
            200, lambda body, refuses=refuses: (400 if refuses and "response_format" in body else 200, good)
        )
        model = RemoteModel(name="m", url=url)
        assert model.ask_parts(["a", PICTURE, "b", PICTURE, "c"], max_tokens=9, schema=schema) == "{}"
        bodies = [body for _, body in seen]
        sent = bodies[0]["response_format"]
        assert sent["type"] == "json_schema" and sent["json_schema"]["schema"] == schema and sent["json_schema"]["name"]
        assert len(bodies) == 1 + refuses and ("response_format" in bodies[-1]) is not refuses
        content = bodies[-1]["messages"][0]["content"]
        assert [part.get("text", "picture") for part in content] == ["a", "picture", "b", "picture", "c"]
        assert bodies[-1]["max_tokens"] == 9


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
