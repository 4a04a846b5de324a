"""Answers as they come: parsing undoes encoding, and how the output is cut changes nothing."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.errors import ConfigError, UsageError
from watersmeet.tokenizers.chat import k2
from watersmeet.tokenizers.chat.chat import Chat
from watersmeet.tokenizers.chat.messages import Conversation, Message, Text, ToolCall
from watersmeet.tokenizers.chat.options import ChatOptions
from watersmeet.tokenizers.chat.parsing import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Fault,
    Finished,
    Reasoning,
    Scanner,
    joined,
)
from watersmeet.tokenizers.chat.pieces import Piece, encode_pieces, shown
from watersmeet.tokenizers.text.encoder import Encoder
from watersmeet.tokenizers.tiktoken.train import train_ranks

_RANKS = train_ranks(['get_weather city Paris <|open|>call functions think 12 你好 {"a": 1}'] * 3, 330)
CHATS = {
    generation: Chat(Encoder({"tokenizer": "tiktoken", "model": _RANKS, "generation": generation}).vocabulary, {})
    for generation in ("k2", "k3")
}


def run(parser, pieces):
    """(events with neighbouring texts put together, the whole answer)."""
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.close()
    return joined(events), parser.answer()


def parse(generation, written, *, thinking=None):
    """Parse a text with control names in it."""
    return run(CHATS[generation].parser(ChatOptions(thinking=thinking), text=True), [written])


def ids_of(generation, written):
    """Ids of such a text, every control name as its id."""
    vocabulary = CHATS[generation].vocabulary
    ids = []
    for text, control in [*(scanner := Scanner(vocabulary.specials)).push(written), (scanner.flush(), False)]:
        ids += [vocabulary.symbol_id(text)] if control else vocabulary.encode(text)
    return ids


def cuts(data, length):
    places = sorted(data.draw(st.lists(st.integers(0, length), max_size=8)))
    return list(zip([0, *places], [*places, length], strict=True))


# ---- round trips ----------------------------------------------------------------------------------------------------

ANY = st.lists(
    st.one_of(
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from(["<|sep|>", "<|close|>argument<|sep|>", "<|tool_call_end|>", "<|im_end|>", '"', "&", "&quot;", "\\", "</think>"]),
    ),
    max_size=10,
).map("".join)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(ANY, VALUES, max_size=4)
PLAIN_NAMES = st.from_regex(r"[\w.-]{1,12}", fullmatch=True)


def answer_ids(generation, message, thinking):
    """Ids that a model would write for this message, and those that the prompt wrote before it."""
    chat = CHATS[generation]
    user = Message(role="user", content=(Text(text="q"),))
    options = ChatOptions(thinking=thinking, keep_reasoning=True)
    prompt = chat.encode(Conversation(messages=(user,)), options).ids
    whole = chat.encode(
        Conversation(messages=(user, message)), ChatOptions(thinking=thinking, generate=False, keep_reasoning=True)
    ).ids
    assert whole[: len(prompt)] == prompt
    return whole[len(prompt) :]


@given(st.data(), st.lists(st.tuples(ANY.filter(bool), ARGUMENTS), max_size=3), ANY, ANY, st.booleans())
@settings(max_examples=60, deadline=None)
def test_k3_parsing_undoes_encoding_however_it_is_cut(data, calls, reasoning, content, thinking):
    made = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    reasoning = reasoning if thinking and reasoning.strip() else None
    message = Message(
        role="assistant", content=(Text(text=content),) if content else (), reasoning=reasoning, calls=made
    )
    ids = answer_ids("k3", message, thinking)
    options = ChatOptions(thinking=thinking)
    events, answer = run(CHATS["k3"].parser(options), [ids])
    assert answer.calls == made and answer.content == content and answer.reasoning == (reasoning or "")
    assert answer.finished and not answer.faults and answer.unfinished is None
    for index, call in enumerate(made):
        texts = [event.text for event in events if isinstance(event, CallArguments) and event.index == index]
        assert json.loads("".join(texts)) == call.arguments
    pieces = [ids[start:stop] for start, stop in cuts(data, len(ids))]
    assert run(CHATS["k3"].parser(options), pieces) == (events, answer)
    assert run(CHATS["k3"].parser(options), ids) == (events, answer)


@given(st.data(), st.lists(st.tuples(PLAIN_NAMES, ARGUMENTS), max_size=3), ANY, ANY, st.booleans())
@settings(max_examples=60, deadline=None)
def test_k2_parsing_undoes_encoding_however_it_is_cut(data, calls, reasoning, content, thinking):
    made = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    reasoning = reasoning if thinking and reasoning.strip() else None
    message = Message(
        role="assistant", content=(Text(text=content),) if content else (), reasoning=reasoning, calls=made
    )
    mode = True if thinking else None
    ids = answer_ids("k2", message, mode)
    options = ChatOptions(thinking=mode)
    events, answer = run(CHATS["k2"].parser(options), [ids])
    assert [(c.name, c.arguments) for c in answer.calls] == [(c.name, c.arguments) for c in made]
    assert [c.id for c in answer.calls] == [f"functions.{c.name}:{i}" for i, c in enumerate(made)]
    assert answer.content == content and answer.reasoning == (reasoning or "") and answer.finished
    assert not answer.faults
    pieces = [ids[start:stop] for start, stop in cuts(data, len(ids))]
    assert run(CHATS["k2"].parser(options), pieces) == (events, answer)


SOUP = {
    "k3": ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "think", "response", "tools", "call", 'call tool="f"', "argument",
           'argument key="a" type="string"', 'argument key="b" type="number"', "json", "message", " ", "x", "12", "<|op", "en|>", "你"],
    "k2": [*k2.__dict__["_TOKENS"].values(), k2.SECTION_BEGIN, k2.SECTION_END, k2.CALL_BEGIN, k2.CALL_ARGUMENTS, k2.CALL_END, k2.THINK,
           k2.THINK_END, "<|tool_call_section_begin|>", "<|tool_call_section_end|>", "functions.f:0", '{"a": 1}', " ", "x", "<|tool_", "<|im_end|>"],
}  # fmt: skip


@pytest.mark.parametrize("generation", SOUP)
@given(data=st.data(), thinking=st.booleans())
@settings(max_examples=120, deadline=None)
def test_any_soup_of_tokens_is_parsed_alike_however_it_is_cut(generation, data, thinking):
    """No output of a model raises; nothing of it depends on how it came; nothing is lost."""
    written = "".join(data.draw(st.lists(st.sampled_from(SOUP[generation]), max_size=25)))
    chat, options = CHATS[generation], ChatOptions(thinking=thinking)
    events, answer = run(chat.parser(options, text=True), [written])
    parts = [written[start:stop] for start, stop in cuts(data, len(written))]
    assert run(chat.parser(options, text=True), parts) == (events, answer)
    assert run(chat.parser(options, text=True), list(written)) == (events, answer)
    ids = ids_of(generation, written)
    by_ids = run(chat.parser(options), [ids])
    assert run(chat.parser(options), ids) == by_ids
    for event in events:
        if isinstance(event, CallEnd):
            said = "".join(e.text for e in events if isinstance(e, CallArguments) and e.index == event.index)
            assert event.call.arguments == said or json.loads(said or "{}") == event.call.arguments


# ---- K2, case by case -----------------------------------------------------------------------------------------------


def section(*calls, begin=k2.SECTION_BEGIN, end=k2.SECTION_END):
    body = "".join(f"{k2.CALL_BEGIN}{name}{k2.CALL_ARGUMENTS}{arguments}{k2.CALL_END}" for name, arguments in calls)
    return begin + body + end


def test_k2_events_in_their_order():
    events, answer = parse(
        "k2", "Hm." + section(("functions.f:0", '{"a": 1}'), ("functions.g:1", "")) + "<|im_end|>ignored"
    )
    assert events == [
        Content(text="Hm."),
        CallStart(index=0, name="f", id="functions.f:0"),
        CallArguments(index=0, text='{"a": 1}'),
        CallEnd(index=0, call=ToolCall(name="f", arguments={"a": 1}, id="functions.f:0")),
        CallStart(index=1, name="g", id="functions.g:1"),
        CallEnd(index=1, call=ToolCall(name="g", arguments={}, id="functions.g:1")),
        Finished(),
    ]
    assert answer.finished and answer.content == "Hm." and answer.open_in is None


def test_pitfall_54_control_ids_are_kept_for_parsing():
    """The decoder of text drops them; the parser must be fed ids, or text that still has their names."""
    written = "<think>a</think>b" + section(("functions.f:0", "{}"))
    ids = ids_of("k2", written)
    vocabulary = CHATS["k2"].vocabulary
    assert "think" not in vocabulary.bytes_of(ids).decode()
    answer = run(CHATS["k2"].parser(), [ids])[1]
    assert (answer.reasoning, answer.content, len(answer.calls)) == ("a", "b", 1)
    assert answer == parse("k2", written)[1]
    # and an answer that only spells a name in ordinary tokens has no call
    spelled = [i for part in written for i in vocabulary.encode(part)]
    answer = run(CHATS["k2"].parser(), [spelled])[1]
    assert answer.content == written and not answer.calls


@pytest.mark.parametrize("name", ["get-weather", "get_weather", "ns.tool", "a.b-c_d.9", "functions", "Ünï"])
@pytest.mark.parametrize("shape", ["functions.{}:0", " functions.{}:12 \n", "{}:0", "{}"])
def test_pitfall_56_names_with_hyphens_and_dots(name, shape):
    answer = parse("k2", section((shape.format(name), '{"a": 1}')))[1]
    assert [call.name for call in answer.calls] == [name] and answer.calls[0].id == shape.format(name).strip()


def test_pitfall_56_a_section_inside_the_reasoning_ends_it():
    for generation, written in (
        ("k2", "I will look" + section(("functions.f:0", "{}")) + "after"),
        (
            "k3",
            'I will look<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        ),
    ):
        answer = parse(generation, written, thinking=True)[1]
        assert answer.reasoning == "I will look" and [call.name for call in answer.calls] == ["f"]
        assert answer.content == ("after" if generation == "k2" else "") and not answer.faults


@pytest.mark.parametrize("begin", [k2.SECTION_BEGIN, "<|tool_call_section_begin|>"])
@pytest.mark.parametrize("end", [k2.SECTION_END, "<|tool_call_section_end|>", ""])
def test_pitfall_57_section_markers_in_both_numbers(begin, end):
    written = "a" + section(("functions.f:0", '{"b": 2}'), begin=begin, end=end) + "<|im_end|>"
    answer = parse("k2", written)[1]
    assert answer.content == "a" and answer.calls[0].arguments == {"b": 2} and not answer.faults and answer.finished
    # the singular has no id of its own, so it comes as ordinary tokens
    assert run(CHATS["k2"].parser(), [ids_of("k2", written)])[1] == answer


def test_k2_faults_are_told_and_calls_never_half_reported():
    answer = parse(
        "k2", f'{k2.SECTION_BEGIN}{k2.CALL_BEGIN}functions.f:0{k2.CALL_ARGUMENTS}{{"a": ' + section(("g", "{}"))
    )[1]
    assert [call.name for call in answer.calls] == ["g"]
    assert any("'f' was not closed" in fault.reason for fault in answer.faults)
    answer = parse("k2", section(("not a name!", '{"a": 1}'), ("f", "{}")))[1]
    assert [call.name for call in answer.calls] == ["f"]
    assert [(f.text, f.reason) for f in answer.faults] == [
        ("not a name!", "no name of a tool"),
        ('{"a": 1}', "arguments of no tool"),
    ]
    assert parse("k2", section(("f", "no json")))[1].calls[0].arguments == "no json"
    assert parse("k2", section(("f", "[1]")))[1].calls[0].arguments == "[1]"
    assert parse("k2", "a</think>b<|im_user|>")[1].content == "ab<|im_user|>"


CUT = [
    ("k2", True, "why", ("reasoning", None)),
    ("k2", None, "so", ("content", None)),
    ("k2", None, k2.SECTION_BEGIN, ("between", None)),
    ("k2", None, k2.SECTION_BEGIN + k2.CALL_BEGIN + "functions.f", ("call", None)),
    ("k2", None, k2.CALL_BEGIN + "functions.f:0" + k2.CALL_ARGUMENTS + '{"a": "x', ("call", ToolCall(name="f", arguments='{"a": "x', id="functions.f:0"))),
    ("k3", True, "why", ("reasoning", None)),
    ("k3", True, "why<|close|>think<|sep|>", ("between", None)),
    ("k3", False, "so", ("content", None)),
    ("k3", False, '<|open|>tools<|sep|><|open|>call tool="f"<|sep|><|open|>argument key="a" type="string"<|sep|>x', ("call", ToolCall(name="f", arguments='{"a": "x'))),
    ("k3", False, '<|open|>tools<|sep|><|open|>call tool="f"<|sep|><|open|>argument key="a" type="number"<|sep|>12', ("call", ToolCall(name="f", arguments='{"a": 12'))),
]  # fmt: skip


@pytest.mark.parametrize(("generation", "thinking", "written", "wanted"), CUT)
def test_an_output_that_was_cut_is_a_clear_part(generation, thinking, written, wanted):
    events, answer = parse(generation, written, thinking=thinking)
    assert not answer.finished and not answer.calls and (answer.open_in, answer.unfinished) == wanted
    assert not any(isinstance(event, (CallEnd, Finished)) for event in events)


# ---- K3, case by case -----------------------------------------------------------------------------------------------


def element(tag, body):
    return f"<|open|>{tag}<|sep|>{body}<|close|>{tag.split()[0]}<|sep|>"


def call(name, *arguments, index=1):
    body = "".join(element(f'argument key="{key}" type="{kind}"', value) for key, kind, value in arguments)
    return element(f'call tool="{name}" index="{index}"', body)


def test_k3_events_in_their_order():
    written = (
        "why<|close|>think<|sep|>" + element("response", "so")
        + element("tools", call("f", ("a", "string", 'x"y\n'), ("b", "number", " 2 ")) + call("g", index=2))
        + "<|close|>message<|sep|><|end_of_msg|>"
    )  # fmt: skip
    events, answer = parse("k3", written)
    assert events == [
        Reasoning(text="why"),
        Content(text="so"),
        CallStart(index=0, name="f"),
        CallArguments(index=0, text='{"a": "x\\"y\\n", "b":  2 }'),
        CallEnd(index=0, call=ToolCall(name="f", arguments={"a": 'x"y\n', "b": 2})),
        CallStart(index=1, name="g"),
        CallArguments(index=1, text="{}"),
        CallEnd(index=1, call=ToolCall(name="g", arguments={})),
        Finished(),
    ]
    assert not answer.faults


def test_k3_arguments_stream_while_they_are_written():
    parser = CHATS["k3"].parser(ChatOptions(thinking=False))
    for piece in ids_of(
        "k3", '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>'
    ):
        parser.feed(piece)
    shown_ = ["".join(event.text for event in parser.feed(index)) for index in ids_of("k3", "long text")]
    assert "".join(shown_) == "long text" and sum(map(bool, shown_)) > 1


def test_pitfall_53_a_tool_channel_is_parsed_though_no_tools_were_declared():
    # nothing about the tools of a request is ever given to a parser: what to do with a call is the caller's affair
    answer = parse("k3", "<|close|>think<|sep|>" + element("tools", call("undeclared", ("x", "null", "null"))))[1]
    assert answer.calls == (ToolCall(name="undeclared", arguments={"x": None}),) and not answer.faults


def test_pitfall_52_attributes_are_unescaped_in_the_opposite_order():
    answer = parse(
        "k3", element("tools", call("a&amp;b&quot;c", ("&amp;quot;", "string", "&amp; stays"))), thinking=False
    )[1]
    assert answer.calls == (ToolCall(name='a&b"c', arguments={"&quot;": "&amp; stays"}),)


def test_k3_leniency_and_faults():
    # the opening that the prompt wrote may be repeated
    again = '<|open|>message role="assistant"<|sep|>' + element("think", "a") + element("response", "b")
    answer = parse("k3", again)[1]
    assert (answer.reasoning, answer.content, answer.faults) == ("a", "b", ())
    # a value that is not of its type stays as text, and is told
    answer = parse("k3", element("tools", call("f", ("a", "number", "many"), ("b", "boolean", "1"))), thinking=False)[1]
    assert answer.calls[0].arguments == {"a": "many", "b": "1"} and len(answer.faults) == 2
    # an unknown element inside a call, a nameless call, text between channels, a tag that closes nothing
    odd = element("tools", element("note", "n") + element("call", "c") + " \n ") + "stray" + "<|close|>x<|sep|><|sep|>"
    answer = parse("k3", odd, thinking=False)[1]
    assert (
        not answer.calls
        and "n" in [fault.text for fault in answer.faults]
        and "stray" in [f.text for f in answer.faults]
    )
    # an argument twice
    answer = parse("k3", element("tools", call("f", ("a", "string", "1"), ("a", "string", "2"))), thinking=False)[1]
    assert answer.calls[0].arguments == {"a": "1"} and any("twice" in fault.reason for fault in answer.faults)
    # a call that was left is not a call
    left = '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|>'
    answer = parse("k3", left, thinking=False)[1]
    assert [c.name for c in answer.calls] == ["g"] and any("'f' was not closed" in f.reason for f in answer.faults)


def test_the_json_element_of_inputs_is_read_too():
    chat = CHATS["k3"]
    message = Message(role="assistant", calls=(ToolCall(name="f", arguments="{no json"),))
    ids = answer_ids("k3", message, False)
    answer = run(chat.parser(ChatOptions(thinking=False)), [ids])[1]
    assert answer.calls == (ToolCall(name="f", arguments="{no json"),)
    good = element("tools", element('call tool="f" index="1"', element('json type="object"', '{"a": 1}')))
    assert parse("k3", good, thinking=False)[1].calls == (ToolCall(name="f", arguments={"a": 1}),)


def test_control_tokens_without_a_place_are_told():
    vocabulary = CHATS["k3"].vocabulary
    answer = run(
        CHATS["k3"].parser(ChatOptions(thinking=False)),
        [vocabulary.encode("a"), [vocabulary.bos_id], vocabulary.encode("b")],
    )[1]
    assert answer.content == "ab" and [f.text for f in answer.faults] == ["[BOS]"]
    for end in ("[EOS]", "[EOT]"):
        answer = run(CHATS["k3"].parser(ChatOptions(thinking=False)), [[vocabulary.symbol_id(end)]])[1]
        assert answer.finished


def test_half_a_character_before_a_control_token():
    vocabulary = CHATS["k3"].vocabulary
    half = vocabulary.token_bytes.index(b"\xf0")
    answer = run(CHATS["k3"].parser(ChatOptions(thinking=False)), [[half], ids_of("k3", "<|close|>response<|sep|>")])[1]
    assert answer.content == "\ufffd" and answer.open_in == "between"


def test_what_a_parser_cannot_read():
    parser = CHATS["k3"].parser()
    with pytest.raises(UsageError, match="reads ids"):
        parser.feed("text")
    with pytest.raises(ConfigError, match="outside"):
        parser.feed([10**6])
    with pytest.raises(UsageError, match="reads text"):
        CHATS["k3"].parser(text=True).feed([1])
    parser.close()
    assert parser.close() == []
    with pytest.raises(UsageError, match="was closed"):
        parser.feed([1])


def test_events_are_joined_only_with_their_like():
    fault = Fault(text="x", reason="r")
    events = [
        Content(text="a"),
        Content(text="b"),
        Reasoning(text="c"),
        fault,
        fault,
        CallArguments(index=0, text="1"),
        CallArguments(index=1, text="2"),
    ]
    assert joined(events) == [Content(text="ab"), Reasoning(text="c"), fault, fault, *events[-2:]]
    assert shown([Piece("a"), Piece("<|sep|>", control=True)]) == "a<|sep|>"
    assert encode_pieces([], CHATS["k3"].vocabulary).ids == []
