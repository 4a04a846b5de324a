"""`watersmeet generate` with our own and with published directories: texts, conversations, lists of ids."""

import base64
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image

from watersmeet.__main__ import main
from watersmeet.cli.generate import Request, sampling
from watersmeet.cli.talk import openai_answer
from watersmeet.core.checkpoint import save_checkpoint
from watersmeet.core.config import preset
from watersmeet.core.model import Model
from watersmeet.core.official.random import random_k3, random_kimi_linear
from watersmeet.core.stream import Span, Stream, content_key, pack
from watersmeet.pipelines.models.local import load_local
from watersmeet.tokenizers.chat.messages import ToolCall
from watersmeet.tokenizers.chat.parsing import Answer
from watersmeet.tokenizers.text.embedder import Embedder
from watersmeet.tokenizers.text.encoder import Encoder
from watersmeet.tokenizers.tiktoken.train import train_ranks

RANKS = train_ranks(["What is the weather in Paris today? message role user assistant system think response"] * 3, 320)
FIRST = RANKS.count(b"\n")
SIZE = FIRST + 256


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders by kind: `linear` and `k3` in published layouts, `bare` without a tokenizer, `native` of our own."""
    root = tmp_path_factory.mktemp("models")
    random_kimi_linear(root / "linear", seed=1, vocab_size=SIZE)
    random_k3(root / "k3", seed=2, vocab_size=SIZE)
    random_kimi_linear(root / "bare", seed=3)
    for name in ("linear", "k3"):
        (root / name / "tiktoken.model").write_bytes(RANKS)
    (root / "k3" / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5], "temperature": 0.5}))
    (root / "linear" / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_user|>{{ m.content }}<|im_end|>{% endfor %}<|im_assistant|>assistant<|im_middle|>"
    )
    encoder = Encoder.train(["some words to train on, and more of them"] * 30, ["<a>", "</a>"], 400)
    config = preset("micro").replace(vocab_size=encoder.vocab_size, output_modality="text")
    torch.manual_seed(0)
    model = Model(config, {"text": Embedder(config.hidden_size, encoder.settings)})
    save_checkpoint(root / "native", model, processor={"modalities": {"text": encoder.settings}}, files=encoder.files)
    return root


def run(capsys, *words):
    code = main(["generate", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def document(capsys, *words):
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def reread(model, ids, count):
    """Greedy ids by reading everything again after each one: no cache, no batch."""
    ids = list(ids)
    for _ in range(count):
        data = torch.tensor(ids)
        packed = pack([Stream(spans=(Span(modality="text", data=data, key=content_key(data)),))], model.modality_names)
        with torch.inference_mode():
            ids.append(int(model.logits(model(packed)[-1]).argmax()))
    return ids[-count:]


@pytest.mark.parametrize("kind", ["linear", "k3", "native", "bare"])
def test_lists_of_ids_are_continued_each_by_itself(kind, models, capsys, tmp_path):
    lists = [[3, 4, 5], [7], list(range(10, 50))]
    (tmp_path / "ids.json").write_text(json.dumps(lists))
    options = ("--model", models / kind, "--ids", tmp_path / "ids.json", "--max-new", 6, "--greedy", "--ignore-eos")
    found = document(capsys, *options)
    model = load_local(str(models / kind)).model
    assert found["ids"] == [reread(model, ids, 6) for ids in lists]
    assert found["prompt_lengths"] == [3, 1, 40] and found["stopped_by"] == [None] * 3 and len(found["logprobs"]) == 3
    assert found["temperature"] == 0.0 and found["dtype"] == "float32" and found["stop_ids"] == []
    code, out, _ = run(capsys, *options)
    assert code == 0 and [[int(i) for i in line.split()] for line in out.splitlines()] == found["ids"]


def test_an_end_id_is_the_last_one_and_is_named(models, capsys, tmp_path):
    (tmp_path / "ids.json").write_text("[[3, 4, 5]]")
    options = ("--model", models / "linear", "--ids", tmp_path / "ids.json", "--max-new", 12, "--greedy")
    free = document(capsys, *options, "--ignore-eos")["ids"][0]
    raw = json.loads((models / "linear" / "config.json").read_text())
    try:
        (models / "linear" / "config.json").write_text(json.dumps({**raw, "eos_token_id": free[4]}))
        found = document(capsys, *options)
    finally:
        (models / "linear" / "config.json").write_text(json.dumps(raw))
    assert found["ids"][0] == free[: free.index(free[4]) + 1] and found["stopped_by"] == [free[4]]
    assert found["stop_ids"] == [free[4]]


def test_stop_ids_and_sampling_come_from_the_checkpoint(models, capsys, tmp_path):
    (tmp_path / "ids.json").write_text("[[3]]")
    found = document(capsys, "--model", models / "k3", "--ids", tmp_path / "ids.json", "--max-new", 1)
    assert set(found["stop_ids"]) == {2, 5} and (found["temperature"], found["top_p"]) == (0.5, 1.0)
    advised = {"generation_config.json": b'{"temperature": 0.6, "top_p": 0.9}'}
    assert sampling(Request(model="m"), advised) == (0.6, 0.9)
    assert sampling(Request(model="m", temperature=0.0, top_p=0.5), advised) == (0.0, 0.5)
    assert sampling(Request(model="m", greedy=True), advised) == (0.0, 1.0)
    for odd in (b"[", b"[]", b'{"temperature": "hot"}'):
        assert sampling(Request(model="m"), {"generation_config.json": odd}) == (1.0, 1.0)


@pytest.mark.parametrize("kind", ["linear", "k3", "native"])
def test_a_text_is_continued_the_same_way_streaming_and_as_json(kind, models, capsys):
    options = ("What is", "--model", models / kind, "--max-new", 12, "--seed", 4)
    found = document(capsys, *options)
    encoder = load_local(str(models / kind)).encoders["text"]
    assert found["prompt_ids"] == encoder.encode_ids("What is")
    code, out, _ = run(capsys, *options)
    assert code == 0 and out == found["text"] + "\n"
    ordinary = [i for i in found["ids"] if encoder.vocabulary.token_bytes[i]]
    assert set(encoder.vocabulary.bytes_of(ordinary).decode("utf-8", "replace")) <= set(found["text"]) | {"\ufffd"}
    assert document(capsys, *options[:-1], 5)["ids"] != found["ids"]


def test_control_symbols_are_shown_by_their_names(models, capsys):
    local = load_local(str(models / "native"))
    found = document(capsys, "some words", "--model", models / "native", "--max-new", 200, "--ignore-eos")
    symbols = local.encoders["text"].symbols
    for name, index in symbols.items():
        assert found["text"].count(name) >= found["ids"].count(index) > 0


def test_an_empty_prompt_begins_a_text(models, capsys):
    found = document(capsys, "", "--model", models / "linear", "--max-new", 2)
    assert found["prompt_ids"] == [FIRST]


def test_conversations_on_the_terminal(models, capsys):
    options = ("Hi", "--model", models / "k3", "--chat", "--max-new", 20, "--seed", 1, "--system", "Be brief.")
    found = document(capsys, *options)
    from watersmeet.tokenizers.chat.chat import chat_of
    from watersmeet.tokenizers.chat.messages import conversation

    chat = chat_of(load_local(str(models / "k3")).encoders["text"])
    talk = conversation([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert found["prompt_ids"] == chat.encode(talk).ids
    assert set(found["stop_ids"]) == {2, 5, chat.end_id} and found["effort"] is None
    parser = chat.parser()
    parser.feed(found["ids"])
    parser.close()
    assert found["message"] == openai_answer(parser.answer())
    code, out, err = run(capsys, *options)
    assert code == 0 and out.rstrip("\n") == found["message"]["content"].rstrip("\n")
    assert found["message"].get("reasoning_content", "") in err
    assert found["finished"] or "--max-new gives it more" in err
    quiet = document(capsys, *options, "--no-thinking")
    assert "reasoning_content" not in quiet["message"] and quiet["prompt_ids"] != found["prompt_ids"]


def test_the_checkpoint_s_template_and_a_file_of_messages(models, capsys, tmp_path):
    found = document(capsys, "Hi", "--model", models / "linear", "--chat", "--max-new", 3)
    vocabulary = load_local(str(models / "linear")).encoders["text"].vocabulary
    names = [vocabulary.name(i) for i in found["prompt_ids"] if vocabulary.is_special(i)]
    assert names == ["<|im_user|>", "<|im_end|>", "<|im_assistant|>", "<|im_middle|>"]
    talk = [{"role": "user", "content": "Hi"}]
    for content in (talk, {"messages": talk}, {"messages": talk, "tools": []}):
        (tmp_path / "talk.json").write_text(json.dumps(content))
        again = document(capsys, "--messages", tmp_path / "talk.json", "--model", models / "linear", "--max-new", 3)
        assert again["ids"] == found["ids"] and again["prompt_ids"] == found["prompt_ids"]


def test_pictures_of_a_conversation(models, capsys, tmp_path):
    assert main(["graft", "--base", str(models / "k3"), "--modality", "image", "--out", str(tmp_path / "seeing")]) == 0
    Image.effect_noise((90, 50), 40).convert("RGB").save(tmp_path / "a.png")
    address = "data:image/png;base64," + base64.b64encode((tmp_path / "a.png").read_bytes()).decode()

    def ask(source, model):
        parts = [{"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": source}}]
        (tmp_path / "talk.json").write_text(json.dumps([{"role": "user", "content": parts}]))
        return ["--messages", tmp_path / "talk.json", "--model", model, "--max-new", 4, "--greedy"]

    capsys.readouterr()
    found = document(capsys, *ask(str(tmp_path / "a.png"), tmp_path / "seeing"))
    local = load_local(str(tmp_path / "seeing"))
    vocabulary = local.encoders["text"].vocabulary
    [span] = local.encoders["image"].encode(tmp_path / "a.png")
    pad = vocabulary.symbol_id("<|media_pad|>")
    first = found["prompt_ids"].index(pad)
    assert found["prompt_ids"].count(pad) == span.n and set(found["prompt_ids"][first : first + span.n]) == {pad}
    assert "image 90x50" in vocabulary.bytes_of(found["prompt_ids"]).decode()
    # the same prompt put together here gives the same first id
    ids = [torch.tensor(found["prompt_ids"][:first]), torch.tensor(found["prompt_ids"][first + span.n :])]
    text = [Span(modality="text", data=part, key=content_key(part)) for part in ids]
    packed = pack([Stream(spans=(text[0], span, text[1]))], local.model.modality_names)
    with torch.inference_mode():
        assert int(local.model.logits(local.model(packed)[-1]).argmax()) == found["ids"][0]
    assert document(capsys, *ask(address, tmp_path / "seeing"))["ids"] == found["ids"]
    wrong = [
        ("https://example.org/a.png", tmp_path / "seeing", 1, "from where nothing is fetched"),
        ("data:image/png,abc", tmp_path / "seeing", 1, "expected data:"),
        ("data:image/png;base64,?", tmp_path / "seeing", 1, "no base64"),
        (str(tmp_path / "gone.png"), tmp_path / "seeing", 1, "gone.png"),
        (str(tmp_path / "a.png"), models / "k3", 2, "reads none; `watersmeet graft`"),
    ]
    for source, model, code, hint in wrong:
        got, _, err = run(capsys, *ask(source, model))
        assert got == code and hint in err.splitlines()[-1], err


def test_an_answer_as_a_message():
    answer = Answer(
        reasoning="why",
        content="so",
        calls=(ToolCall(name="f", arguments={"é": 1}), ToolCall(name="g", arguments="{", id="functions.g:1")),
        faults=(),
        finished=True,
    )
    message = openai_answer(answer)
    assert [call["id"] for call in message["tool_calls"]] == ["call_0", "functions.g:1"]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"é": 1}', "{"]


WRONG = [
    ([], 2, "got nothing to continue"),
    (["a", "--ids", "x.json"], 2, "got a prompt and --ids FILE"),
    (["a", "--model", "openai:m@http://h"], 2, "which takes requests itself"),
    (["a", "--greedy", "--temperature", "0.5"], 2, "--greedy contradicts"),
    (["a", "--dtype", "float8"], 2, "--dtype is float8"),
    (["a", "--system", "s"], 2, "--system belongs to a conversation"),
    (["a", "--effort", "low"], 2, "--effort belongs to a conversation"),
    (["--ids", "x.json", "--chat"], 2, "--ids are continued as they stand"),
    (["a", "--max-new", "0"], 2, "--max-new"),
    (["--ids", "gone.json"], 2, "gone.json: cannot be read"),
    (["--messages", "gone.json"], 1, "gone.json: cannot be read"),
    (["a", "--model", "nanno"], 1, "did you mean 'nano'"),
]


@pytest.mark.parametrize(("words", "code", "hint"), WRONG)
def test_wrong_requests_are_told_before_a_model_is_loaded(words, code, hint, capsys, monkeypatch):
    monkeypatch.setattr("watersmeet.pipelines.models.local.load_local", lambda *a, **k: pytest.fail("loaded"))
    found, out, err = run(capsys, *words)
    assert found == code and out == "" and hint in err and "Traceback" not in err


FILES = [
    ("{}", "expected a list of lists"),
    ("[]", "at least one list"),
    ("[1, 2]", "expected a list of lists"),
    ("[[1], []]", "list 1 is empty"),
    ("[[1, -2]]", "list 0 holds id -2 at place 1"),
    ("[[1, true]]", "list 0 holds True at place 1"),
    ("[[1.0]]", "list 0 holds 1.0 at place 0"),
    ("[[1], [5, 99999]]", "list 1 holds id 99999 at place 1, expected 0..159"),
    ("[[1]", "not JSON"),
    ("[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("content", "hint"), FILES)
def test_wrong_files_of_ids_are_told_before_a_model_is_loaded(content, hint, models, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("watersmeet.pipelines.models.local.load_local", lambda *a, **k: pytest.fail("loaded"))
    (tmp_path / "ids.json").write_text(content)
    code, out, err = run(capsys, "--ids", tmp_path / "ids.json", "--model", models / "bare")
    assert code == 2 and out == "" and hint in err


def test_a_directory_without_a_tokenizer_reads_ids_only(models, capsys):
    for words in (["Hi"], ["Hi", "--chat"]):
        code, out, err = run(capsys, *words, "--model", models / "bare")
        assert code == 2 and out == "" and "has no tokenizer beside its weights" in err.splitlines()[-1]
    code, _, err = run(capsys, "Hi", "--chat", "--model", models / "native")
    assert code == 1 and "no control tokens for a conversation" in err


def test_a_tokenizer_of_another_size_is_told_before_weights_are_read(models, capsys, tmp_path):
    folder = tmp_path / "m"
    random_kimi_linear(folder, vocab_size=SIZE + 1)
    (folder / "tiktoken.model").write_bytes(RANKS)
    code, _, err = run(capsys, "Hi", "--model", folder)
    assert code == 1 and f"{SIZE} ids" in err and f"{SIZE + 1}" in err.splitlines()[-1]


def test_the_model_that_ships_continues_markup_and_text(capsys):
    code, out, _ = run(capsys, "Sign in to your account", "--max-new", 12, "--greedy")
    assert code == 0 and out.endswith("\n")


def test_ctrl_c_ends_with_one_line(models):
    # a shell that starts the suite in the background lets its children ignore Ctrl-C
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from watersmeet.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["generate", "What is", "--model", str(models / "linear"), "--max-new", "1000000", "--ignore-eos"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    )
    assert process.stdout.read(20)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "watersmeet: stopped" and "Traceback" not in err
