import pickle
import random
import subprocess
import sys
import time

import pytest
import torch

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.tokenizers.text.decoder import Decoder
from watersmeet.tokenizers.text.embedder import Embedder
from watersmeet.tokenizers.text.encoder import Encoder
from watersmeet.tokenizers.text.train import train_tokenizer

SYMBOLS = ["<page>", "</page>", "<a,b>", 'q"uote', "x=1", "é<", *(f"<x{i}>" for i in range(64))]

HARD = [
    "",
    " ",
    "  two  spaces\n\n\tand a tab ",
    "<page></page><a,b> x=1 é< <x3>",
    "<s></s><unk><0x41><pad>",
    "\u2581 is not a space, \u2581\u2581",
    "e\u0301 \u00e9 \ufb01 \u00a0 \u3000 \u200b \ufeff",
    "日本語 العربية हिन्दी 😀👩‍👩‍👧",
    "nul\0 and \x7f and \r\n",
    "1234567890 3.14",
    "a" * 5000,
]


def corpus():
    rng = random.Random(0)
    words = (
        "home page about us sign in settings account price monthly report user name save cancel the of and to".split()
    )
    return [" ".join(rng.choices(words, k=12)).capitalize() + "." for _ in range(1500)]


@pytest.fixture(scope="module")
def model():
    return train_tokenizer(corpus(), SYMBOLS, 600)


@pytest.fixture(scope="module")
def encoder(model):
    return Encoder({"model": model})


@pytest.mark.parametrize("text", HARD)
def test_any_text_survives_and_no_text_becomes_a_symbol(encoder, model, text):
    (span,) = encoder.encode(text)
    found = span.data.tolist()
    assert Decoder({"model": model}).decode(found) == text
    assert not set(found) & ({*encoder.symbols.values(), encoder.bos_id, encoder.eos_id, 0})
    # provenance: the ranges tile the text, and each range holds the bytes of its token
    raw = text.encode()
    assert [start for start, _ in span.source] == [0, *(stop for _, stop in span.source)][: span.n]
    assert (span.source[-1][1] if span.n else 0) == len(raw)
    assert all(
        raw[start:stop] == encoder.vocabulary.token_bytes[i]
        for (start, stop), i in zip(span.source, found, strict=True)
    )


def test_random_texts_made_of_symbol_names_stay_text(encoder, model):
    rng = random.Random(1)
    parts = [*SYMBOLS, "<s>", "</s>", "<unk>", "<0x0A>", "\u2581", " ", "\n", "a", "é", "<", ">", "\0", "😀"]
    forbidden = {*encoder.symbols.values(), encoder.bos_id, encoder.eos_id, encoder.vocabulary.unk_id}
    decoder = Decoder({"model": model})
    for _ in range(300):
        text = "".join(rng.choices(parts, k=rng.randint(1, 12)))
        found = encoder.encode_ids(text)
        assert not forbidden & set(found) and decoder.decode(found) == text


def test_symbols_come_only_by_name_and_in_order(encoder, model):
    span = encoder.encode_markup(["<page>", "<a,b>", 'q"uote', "</page>", "</s>"])
    assert span.data.tolist() == [3, 5, 6, 4, encoder.eos_id] and span.data.dtype == torch.int64
    assert list(encoder.symbols) == SYMBOLS and list(encoder.symbols.values()) == list(range(3, 3 + len(SYMBOLS)))
    assert Decoder({"model": model}).decode(span.data.tolist()) == ""
    with pytest.raises(ConfigError, match="no symbol '<pages>'; did you mean '<page>'"):
        encoder.encode_markup(["<pages>"])
    # an ordinary piece is not a symbol, though sentencepiece has it
    piece = encoder.vocabulary.name(encoder.encode_ids("page")[0])
    with pytest.raises(ConfigError):
        encoder.symbol_id(piece)


@pytest.mark.parametrize("text", HARD)
def test_incremental_decoding_equals_decoding_at_once(encoder, model, text):
    decoder = Decoder({"model": model})
    found = encoder.encode_ids(text)
    stream = decoder.stream()
    pieces = [stream.push(index) for index in found]
    assert "\ufffd" not in "".join(pieces) and "".join(pieces) + stream.close() == text
    # cut in the middle: at most one replacement character, at the end
    for cut in range(0, len(found), max(1, len(found) // 7)):
        stream = decoder.stream()
        shown = "".join(stream.push(index) for index in found[:cut])
        assert text.startswith(shown)
        assert shown + stream.close() == decoder.decode(found[:cut])


def test_broken_bytes_from_a_model_never_raise(encoder, model):
    decoder = Decoder({"model": model})
    rng = random.Random(2)
    for _ in range(100):
        found = [rng.randrange(encoder.vocab_size) for _ in range(20)]
        stream = decoder.stream()
        assert "".join(stream.push(index) for index in found) + stream.close() == decoder.decode(found)
    with pytest.raises(ConfigError, match=f"id {encoder.vocab_size} is outside"):
        decoder.decode([encoder.vocab_size])
    with pytest.raises(ConfigError, match="id -1 is outside"):
        decoder.stream().push(-1)


def test_training_is_quick_repeatable_and_exact(model, tmp_path):
    started = time.perf_counter()
    again = train_tokenizer(corpus(), SYMBOLS, 600, tmp_path / "t.model")
    assert time.perf_counter() - started < 10
    assert again == model == (tmp_path / "t.model").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["t.model"]
    assert Encoder({"model": tmp_path / "t.model"}).vocab_size <= 600
    assert Encoder.train(corpus(), SYMBOLS, 600).files["tokenizer.model"] == model


@pytest.mark.parametrize(
    ("corpus_", "symbols", "size", "words"),
    [
        (["a b c"], ["<a>", "<a>"], 400, "'<a>' is given twice"),
        (["a b c"], ["<s>"], 400, "'<s>'"),
        (["a b c"], ["<0x41>"], 400, "'<0x41>'"),
        (["a b c"], [""], 400, "''"),
        (["a b c"], ["<a>"], 260, "vocab_size is 260 .* 260"),
        ([], ["<a>"], 400, "could be trained"),
    ],
)
def test_bad_training_requests_are_explained(corpus_, symbols, size, words):
    with pytest.raises(ConfigError, match=words):
        train_tokenizer(corpus_, symbols, size)


def test_settings_and_files_carry_the_tokenizer_through_a_checkpoint(encoder):
    import json

    saved = json.loads(json.dumps(encoder.settings))
    back = Encoder({**saved, "files": encoder.files})
    assert back.settings == encoder.settings and back.encode_ids("sign in") == encoder.encode_ids("sign in")
    assert Encoder({"files": encoder.files}).vocab_size == encoder.vocab_size
    assert pickle.loads(pickle.dumps(encoder)).encode("hi")[0].key == encoder.encode("hi")[0].key
    with pytest.raises(ConfigError, match="nowhere.model"):
        Encoder({"model": "nowhere.model"})
    with pytest.raises(ConfigError, match="no 'model'"):
        Encoder({})
    with pytest.raises(ConfigError, match="not a sentencepiece model"):
        Encoder({"model": b"garbage"})


def test_keys_depend_on_text_and_tokenizer_and_on_nothing_else(encoder, tmp_path):
    key = encoder.encode("save")[0].key
    assert key == encoder.encode(b"save")[0].key and key != encoder.encode("save ")[0].key
    other = Encoder({"model": train_tokenizer(corpus(), ["<only>"], 400)})
    assert other.encode("save")[0].key != key
    path = tmp_path / "m"
    path.write_bytes(encoder.files["tokenizer.model"])
    code = (
        "import sys; from watersmeet.tokenizers.text.encoder import Encoder;"
        "print(Encoder({'model': sys.argv[1]}).encode('save')[0].key.hex())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == key.hex()


def test_what_is_not_text_is_refused(encoder):
    with pytest.raises(DecodeError, match="not UTF-8: byte 0xff at 2"):
        encoder.encode(b"ab\xff")
    with pytest.raises(DecodeError, match="int"):
        encoder.encode(3)
    assert Decoder({"model": encoder.files["tokenizer.model"]}).decode(encoder.encode_ids("a\ud800b")) == "a\ufffdb"


def test_embedder(encoder):
    embedder = Embedder(8, encoder.settings)
    span = encoder.encode("sign in")[0]
    rows = embedder(span.data, span.coords, None)
    assert torch.equal(rows, embedder.weight[span.data]) and rows.shape == (span.n, 8)
    embedder(span.data[:0], span.coords[:0], None).sum().backward()
    assert embedder.weight.grad is not None and embedder.weight.grad.abs().sum() == 0
    assert embedder.to(torch.bfloat16)(span.data, span.coords, None).dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="vocab_size None"):
        Embedder(8, {})
