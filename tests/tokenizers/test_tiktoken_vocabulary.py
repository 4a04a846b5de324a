"""Official vocabularies: files of ranks, cutting, control slots; compared with the libraries used directly."""

import base64
import json
import pickle
import random
import time

import pytest
import regex
import tiktoken
import tiktoken.load
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.errors import CheckpointError, ConfigError, DecodeError
from watersmeet.tokenizers.text.decoder import Decoder
from watersmeet.tokenizers.text.embedder import Embedder
from watersmeet.tokenizers.text.encoder import Encoder
from watersmeet.tokenizers.tiktoken.ranks import parse_ranks, write_ranks
from watersmeet.tokenizers.tiktoken.specials import TABLES
from watersmeet.tokenizers.tiktoken.train import pieces, train_ranks
from watersmeet.tokenizers.tiktoken.vocabulary import split_long

# written out anew, alternative by alternative, from the published description
DOCUMENTED = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

HARD = [
    "",
    " ",
    "a    b",
    "a    ",
    "spaces   \n   more\r\n\r\nend\n",
    "tabs\t\t\tand \t mixed",
    "你好hello你好 世界123。",
    "日本語のテキスト",
    "it's IT'S we'Ll don’t HELLO helloWorld ABCdef McDonald",
    "1234567890 1,234.5",
    "nul\0 \x7f \u2581 \u00a0 \u3000",
    "e\u0301 é ﬁ 😀👩‍👩‍👧 हिन्दी العربية",
    '<|open|>message role="user"<|sep|> [BOS][EOS] <|im_end|> <think> <|reserved_token_300|>',
    "!!!\n\n??? --\r\n",
]

ANY_TEXT = st.lists(
    st.one_of(
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from(list("aA 1\n\r\t'.你é")),
        st.sampled_from(["<|open|>", "<|sep|>", "[EOS]", "<|im_end|>", "'ll", "  \n"]),
    ),
    max_size=60,
).map("".join)


def peer(ranks, tmp_path):
    path = tmp_path / "peer.model"
    path.write_bytes(ranks)
    return tiktoken.Encoding(
        "peer", pat_str=DOCUMENTED, mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)), special_tokens={}
    )


def test_ids_are_those_of_the_library_with_the_documented_expression(ranks, official, tmp_path):
    encoding, encoder = peer(ranks, tmp_path), official("k3")
    rng = random.Random(3)
    mixed = ["".join(rng.choices(HARD, k=3)) for _ in range(50)]
    for text in (*HARD, *mixed):
        assert encoder.encode_ids(text) == encoding.encode_ordinary(text), text


def test_ids_are_those_of_a_second_program(ranks, official, tmp_path):
    """HF's `tokenizers` runs byte-pair merges of its own; only the way texts are cut is common."""
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    path = tmp_path / "tiktoken.model"
    path.write_bytes(ranks)
    # its regular expressions know no "&&": a look-ahead says the same
    spelled = regex.sub(r"\[((?:\\p\{\w+\})+)&&\[\^\\p\{Han\}\]\]", r"(?:(?!\\p{Han})[\1])", DOCUMENTED)
    assert "&&" not in spelled
    converted = convert.TikTokenConverter(vocab_file=str(path), pattern=spelled).converted()
    encoder = official("k3")
    for text in HARD:
        assert converted.encode(text, add_special_tokens=False).ids == encoder.encode_ids(text), text


@given(ANY_TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text_survives_and_none_becomes_a_control_id(text):
    encoder, decoder = _pair()
    (span,) = encoder.encode(text)
    ids = span.data.tolist()
    assert decoder.decode(ids) == text
    assert all(index < encoder.vocabulary.ranks for index in ids)
    raw = text.encode()
    assert b"".join(raw[start:stop] for start, stop in span.source) == raw
    assert [raw[start:stop] for start, stop in span.source] == [encoder.vocabulary.token_bytes[i] for i in ids]
    stream = decoder.stream()
    shown = [stream.push(index) for index in ids]
    assert "".join(shown) + stream.close() == text
    assert all(text.startswith("".join(shown[:k])) for k in range(len(shown)))


_kept = []


def _pair():
    if not _kept:
        # control names are merged as ordinary text too, the hardest case
        ranks = train_ranks(["<|open|> <|sep|> [EOS] <|im_end|> 'll hello Hello 你好 é 12 345 \n  x"] * 3, 330)
        encoder = Encoder({"tokenizer": "tiktoken", "model": ranks, "family": "kimi_k3"})
        _kept.extend((encoder, Decoder({**encoder.settings, "files": encoder.files})))
    return _kept


def test_pitfall_50_control_strings_in_a_text_stay_text(official):
    for generation in TABLES:
        encoder = official(generation)
        for name in encoder.vocabulary.specials:
            ids = encoder.encode_ids(f"a{name}b {name}")
            assert (
                max(ids) < encoder.vocabulary.ranks and encoder.vocabulary.bytes_of(ids).decode() == f"a{name}b {name}"
            )


@given(ANY_TEXT)
@settings(max_examples=200, deadline=None)
def test_cutting_follows_the_documented_expression(text):
    found = list(pieces(text))
    assert "".join(found) == text
    assert found == [match.group() for match in regex.finditer(DOCUMENTED, text, flags=regex.V1)]


def slow_cut(text, most):
    """Runs of white space and of other characters by a counter, one character after the other."""
    parts, current, length, space = [], "", 0, None
    for character in text:
        length = length + 1 if character.isspace() == space else 1
        space = character.isspace()
        if length > most:
            parts.append(current)
            current, length = "", 1
        current += character
    return [*parts, current] if current else parts


@given(st.text(st.sampled_from("ab \n\t\x1c\x85\u3000你"), max_size=80), st.integers(1, 12))
def test_long_runs_are_cut_where_the_counter_says(text, most):
    assert list(split_long(text, 10**6, most)) == slow_cut(text, most)
    whole = [part for start in range(0, len(text), 30) for part in slow_cut(text[start : start + 30], most)]
    assert list(split_long(text, 30, most)) == whole


def test_long_texts_are_cut_at_25000_alike_and_at_400000(ranks, official, tmp_path):
    encoding, encoder = peer(ranks, tmp_path), official("k3")
    word = "HelloWorld"
    text = word * 6000
    cut = [text[start : start + 25_000] for start in range(0, len(text), 25_000)]
    assert encoder.encode_ids(text) == [i for part in cut for i in encoding.encode_ordinary(part)]
    text = "hello world " * 40_000
    cut = [text[:400_000], text[400_000:]]
    assert encoder.encode_ids(text) == [i for part in cut for i in encoding.encode_ordinary(part)]


@pytest.mark.parametrize("unit", ["a", " ", "\n", "!", "1", "你", "e\u0301", "ab "])
def test_pathological_texts_take_a_moment(official, unit):
    encoder, started = official("k3"), time.perf_counter()
    ids = encoder.encode_ids(unit * 500_000)
    assert time.perf_counter() - started < 5
    assert encoder.vocabulary.bytes_of(ids).decode() == unit * 500_000


# ---- control slots ------------------------------------------------------------------------------------------------

# id, name before K3, name in K3; offsets of the published ids from 163,584
PUBLISHED = [
    (163584, "[BOS]", "[BOS]"),
    (163585, "[EOS]", "[EOS]"),
    (163586, "<|im_end|>", "<|end_of_msg|>"),
    (163587, "<|im_user|>", "<|open|>"),
    (163588, "<|im_assistant|>", "<|close|>"),
    (163589, "<|reserved_token_{}|>", "<|sep|>"),
    (163590, "<|start_header_id|>", "[start_header_id]"),
    (163591, "<|end_header_id|>", "[end_header_id]"),
    (163592, "<|reserved_token_{}|>", "<|reserved_token_{}|>"),
    (163593, "[EOT]", "[EOT]"),
    (163594, "<|im_system|>", "<|reserved_token_{}|>"),
    (163595, "<|tool_calls_section_begin|>", "<|reserved_token_{}|>"),
    (163596, "<|tool_calls_section_end|>", "<|reserved_token_{}|>"),
    (163597, "<|tool_call_begin|>", "<|reserved_token_{}|>"),
    (163598, "<|tool_call_argument_begin|>", "<|reserved_token_{}|>"),
    (163599, "<|tool_call_end|>", "<|reserved_token_{}|>"),
    (163601, "<|im_middle|>", "<|reserved_token_{}|>"),
    (163602, "<|media_begin|>", "<|media_begin|>"),
    (163605, "<|media_pad|>", "<|media_pad|>"),
    (163606, "<think>", "<|reserved_token_{}|>"),
    (163607, "</think>", "<|reserved_token_{}|>"),
    (163649, "<|reserved_token_{}|>", "<osagent_mode>"),
    (163838, "[UNK]", "[UNK]"),
    (163839, "[PAD]", "[PAD]"),
]


def test_pitfall_50_names_of_slots_by_generation_and_never_mixed(official):
    for column, generation in enumerate(("k2", "k3"), start=1):
        vocabulary = official(generation).vocabulary
        assert len(vocabulary.specials) == 256 and vocabulary.size == vocabulary.ranks + 256
        for row in PUBLISHED:
            index = row[0] - 163584 + vocabulary.ranks
            assert vocabulary.name(index) == row[column].format(index)
            assert vocabulary.symbol_id(row[column].format(index)) == index
    with pytest.raises(ConfigError, match="generation k3 has no control token '<\\|im_end\\|>'"):
        official("k3").symbol_id("<|im_end|>")


def added(first, names):
    return {"added_tokens_decoder": {str(first + offset): {"content": name} for offset, name in names.items()}}


def test_names_come_from_the_checkpoint_where_it_has_them(official, ranks):
    first = len(parse_ranks(ranks))
    encoder = official("k2", tokenizer_config__json=added(first, {0: "[BOS]", 3: "<|open|>", 30: "<|mine|>"}))
    vocabulary = encoder.vocabulary
    assert vocabulary.generation == "k3" and vocabulary.symbol_id("<|mine|>") == first + 30
    # its table is whole: nothing of a built-in table is added
    assert vocabulary.name(first + 1) == f"<|reserved_token_{first + 1}|>" and vocabulary.eos_id == -1
    mixed = added(first, {3: "<|open|>", 2: "<|im_end|>"})
    with pytest.raises(CheckpointError, match="two generations"):
        official("k3", tokenizer_config__json=mixed)


def encoder_of(ranks, config=None, **more):
    files = (
        {}
        if config is None
        else {"tokenizer_config.json": config if isinstance(config, bytes) else json.dumps(config).encode()}
    )
    return Encoder({"tokenizer": "tiktoken", "model": ranks, "family": "kimi_k3", "files": files, **more})


def test_sizes_must_add_up(ranks):
    first = len(parse_ranks(ranks))
    assert encoder_of(ranks, vocab_size=first + 256).vocab_size == first + 256
    for wrong in (first + 255, first, 10, 163840):
        with pytest.raises(CheckpointError, match=f"has {first} ranks.* {first + 256} ids.* {wrong}"):
            encoder_of(ranks, vocab_size=wrong)
    # fewer slots are fine when the checkpoint names every one of them
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>"}
    assert encoder_of(ranks, added(first, names), vocab_size=first + 6).vocab_size == first + 6
    with pytest.raises(CheckpointError, match=f"{first + 7}"):
        encoder_of(ranks, added(first, names), vocab_size=first + 7)
    with pytest.raises(CheckpointError, match=f"beyond the vocabulary of {first + 256}"):
        encoder_of(ranks, added(first, {400: "<|far|>"}), vocab_size=first + 256)


LINES = write_ranks(bytes([byte]) for byte in range(256))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no token is the single byte 0x00"),
        (LINES + b"????= 256\n", "line 257 .*not base64"),
        (LINES + b"YWI=", "line 257 .*expected base64 and a rank"),
        (LINES + b"YWI= x\n", "line 257"),
        (LINES + b"YWI= 256 1\n", "line 257"),
        (LINES + b"YWI= 256\nYWI= 257\n", "b'ab' a second time"),
        (LINES + b"YWI= 255\n", "lines 256 and 257 both have rank 255"),
        (LINES + b"YWI= 258\n", "rank 256 is left out"),
        (LINES[: len(LINES) // 2], "line|byte"),
        (LINES.split(b"\n", 1)[1], "rank 0 is left out"),
        (b"\x80\x04\x95pickle\n", "line 1"),
        (b"\0" * 100, "line 1"),
        (LINES + b"YWI= 99999999999999999999\n", "line 257"),
    ],
)
def test_damaged_files_are_one_clear_sentence(data, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        parse_ranks(data)
    assert "\n" not in str(caught.value) and "tiktoken.model" in str(caught.value)
    with pytest.raises(CheckpointError):
        encoder_of(data)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"{", "no description of a tokenizer"),
        (b"[]", "no description of a tokenizer"),
        (b'{"added_tokens_decoder": {"x": {"content": "a"}}}', "no description of a tokenizer"),
        (b'{"added_tokens_decoder": {"700": {"content": 3}}}', "added token 700"),
        (b'{"added_tokens_decoder": {"5": {"content": "[BOS]"}}}', "one of the"),
        (b'{"added_tokens_decoder": {"700": {"content": "a"}, "701": {"content": "a"}}}', "both called 'a'"),
        (b"[" * 100_000, "no description of a tokenizer"),
    ],
)
def test_damaged_tokenizer_configs_are_one_clear_sentence(ranks, config, words):
    with pytest.raises(CheckpointError, match=words):
        encoder_of(ranks, config)


def test_a_generation_is_never_guessed(ranks):
    with pytest.raises(ConfigError, match="generation None"):
        Encoder({"tokenizer": "tiktoken", "model": ranks})
    with pytest.raises(ConfigError, match="generation 'llama'"):
        Encoder({"tokenizer": "tiktoken", "model": ranks, "family": "llama"})
    with pytest.raises(ConfigError, match="tokenizer 'bpe'"):
        Encoder({"tokenizer": "bpe", "model": ranks})


# ---- the text modality ---------------------------------------------------------------------------------------------


def test_settings_and_files_carry_the_tokenizer_through_a_checkpoint(official):
    encoder = official("k3", chat_template__jinja=b"{{ x }}")
    saved = json.loads(json.dumps(encoder.settings))
    back = Encoder({**saved, "files": encoder.files})
    assert back.settings == encoder.settings and set(back.files) == {"tiktoken.model", "chat_template.jinja"}
    assert pickle.loads(pickle.dumps(encoder)).encode("hi")[0].key == encoder.encode("hi")[0].key
    assert official("k2").encode("hi")[0].key != encoder.encode("hi")[0].key
    assert Embedder(4, saved).weight.shape == (encoder.vocab_size, 4)
    assert Encoder({"files": encoder.files, **saved}).encode(b"hi")[0].data.tolist() == encoder.encode_ids("hi")
    with pytest.raises(DecodeError):
        encoder.encode(b"\xff")


def test_control_ids_decode_to_nothing_and_ids_outside_are_named(official):
    encoder = official("k3")
    decoder = Decoder({**encoder.settings, "files": encoder.files})
    ids = [encoder.bos_id, *encoder.encode_ids("naïve 你"), encoder.symbol_id("<|open|>"), encoder.eos_id]
    assert decoder.decode(ids) == "naïve 你"
    stream = decoder.stream()
    assert "".join(stream.push(index) for index in ids) + stream.close() == "naïve 你"
    for outside in (encoder.vocab_size, -1, 10**9):
        with pytest.raises(ConfigError, match=f"id {outside} is outside"):
            decoder.decode([outside])
    assert encoder.encode_markup(["<|open|>"]).data.tolist() == [ids[-2]]


def test_broken_bytes_never_raise_and_stream_as_they_decode(official):
    encoder = official("k2")
    decoder = Decoder({**encoder.settings, "files": encoder.files})
    rng = random.Random(5)
    for _ in range(200):
        ids = [rng.randrange(encoder.vocab_size) for _ in range(20)]
        stream = decoder.stream()
        assert "".join(stream.push(index) for index in ids) + stream.close() == decoder.decode(ids)
    # the four bytes of one character, one token each
    emoji = [encoder.vocabulary.token_bytes.index(bytes([byte])) for byte in "😀".encode()]
    stream = decoder.stream()
    assert [stream.push(index) for index in emoji] == ["", "", "", "😀"] and stream.close() == ""


def test_training_ranks_merges_what_is_frequent_and_repeats_exactly():
    data = train_ranks(["low lower lowest"] * 5, 262)
    assert data == train_ranks(["low lower lowest"] * 5, 262)
    tokens = [base64.b64decode(line.split()[0]) for line in data.splitlines()]
    assert len(tokens) == 262 and tokens[256:259] == [b"lo", b"low", b" low"]
    with pytest.raises(ConfigError, match="255"):
        train_ranks([], 255)
    assert len(train_ranks(["a"], 300).splitlines()) == 256
