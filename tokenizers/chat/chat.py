"""The form that belongs to a vocabulary, with what the checkpoint brings for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watersmeet.core.errors import ConfigError
from watersmeet.core.stream import Span
from watersmeet.tokenizers.chat import k2, xtml
from watersmeet.tokenizers.chat.k2_parser import K2Parser
from watersmeet.tokenizers.chat.messages import Conversation, Picture, conversation
from watersmeet.tokenizers.chat.options import ChatOptions
from watersmeet.tokenizers.chat.parsing import StreamParser
from watersmeet.tokenizers.chat.pieces import Encoded, Piece, Pieces, encode_pieces, spans_of
from watersmeet.tokenizers.chat.template import Template, find_template
from watersmeet.tokenizers.chat.wording import FILE as WORDING_FILE
from watersmeet.tokenizers.chat.wording import Wording, read_wording
from watersmeet.tokenizers.chat.xtml_parser import XtmlParser
from watersmeet.tokenizers.tiktoken.vocabulary import TiktokenVocabulary


class Chat:
    """Encodes conversations and parses answers for one checkpoint.

    K2's generation: the checkpoint's template, or the built-in form. K3's: XTML alone, with the sentences of its
    `encoding_k3.py`. files: those that lie beside the weights.
    """

    def __init__(self, vocabulary: TiktokenVocabulary, files: Mapping[str, bytes]) -> None:
        self.vocabulary = vocabulary
        self.template: Template | None = None
        self.wording = Wording()
        if vocabulary.generation == "k2":
            source = find_template(files)
            self.template = None if source is None else Template(source)
        elif WORDING_FILE in files:
            self.wording = read_wording(files[WORDING_FILE])

    @property
    def default_effort(self) -> str | None:
        """The official default where the checkpoint has words for it: "max", else None (nothing is said)."""
        return "max" if "effort" in self.wording.sentences and "max" in self.wording.efforts else None

    @property
    def end_id(self) -> int:
        """The id that ends a message."""
        return self.vocabulary.symbol_id(k2.END if self.vocabulary.generation == "k2" else xtml.END)

    def pieces(self, talk: Conversation, options: ChatOptions | None = None) -> Pieces:
        """Control tokens, texts and media of a conversation, in order."""
        options = options or ChatOptions()
        if self.vocabulary.generation == "k3":
            return xtml.render(talk, options, self.wording)
        if self.template is not None:
            if options.effort is not None or options.format_type != "text" or options.tool_choice not in (None, "auto"):
                raise ConfigError("chat: thinking effort, tool choice and response format are not part of the K2 form")
            return self.template.render(k2.with_official_ids(talk), options, self.vocabulary.specials)
        return k2.render(talk, options)

    def encode(
        self, talk: Conversation, options: ChatOptions | None = None, pads: Callable[[Picture], int] | None = None
    ) -> Encoded:
        """Ids and loss weights of a conversation; `pads` as in `encode_pieces`."""
        encoded = encode_pieces(self.pieces(talk, options), self.vocabulary, pads)
        if self.vocabulary.generation == "k2":
            # a template does not say which parts are whose; the ids do, and say the same of the built-in form
            marks = (self.vocabulary.symbol_id(name) for name in ("<|im_assistant|>", k2.MIDDLE, k2.END))
            opening = 1 if options is None or options.generate else 0
            weights = k2.learnt(encoded.ids, *marks)
            return Encoded(ids=encoded.ids, weights=_without_opening(weights, encoded.ids, self, opening))
        return encoded

    def prompt(
        self,
        messages: Any,
        encoder: Any,
        media: Callable[[Picture], list[Span]] | None = None,
        options: ChatOptions | None = None,
    ) -> tuple[list[Span], StreamParser, tuple[int, ...]]:
        """(spans of OpenAI-style messages, a parser of the answer, ids that end it); without reasoning unless asked for.

        encoder: the text modality's. media: spans of a picture.
        """
        thinking = None if self.vocabulary.generation == "k2" else False
        options = options or ChatOptions(thinking=thinking)
        pieces = self.pieces(conversation(messages), options)
        spans, _ = spans_of(pieces, encoder, media)
        opening = pieces[-1]
        last = [self.vocabulary.symbol_id(opening.text)] if isinstance(opening, Piece) and opening.control else []
        return spans, self.parser(options, prompt=last), (self.end_id,)

    def lesson(self, messages: Any, encoder: Any, **how: Any) -> tuple[list[Span], list[Any]]:
        """Spans of a conversation to learn from and the weights of their tokens; see `lesson.lesson`."""
        from watersmeet.tokenizers.chat.lesson import lesson

        return lesson(self, messages, encoder, **how)

    def parser(
        self, options: ChatOptions | None = None, *, text: bool = False, prompt: Sequence[int] = ()
    ) -> StreamParser:
        """A new parser of the answer to a prompt that `encode` made with these options.

        text: it will be fed text with control names in it (a server's output), instead of ids. prompt: the prompt's ids,
        which tell when a template opened the reasoning without having been asked to.
        """
        thinking = (options or ChatOptions()).thinking
        vocabulary = None if text else self.vocabulary
        if self.vocabulary.generation == "k2":
            opened = bool(prompt) and prompt[-1] == self.vocabulary.specials.get(k2.THINK)
            return K2Parser(vocabulary, thinking=opened or thinking is True)
        return XtmlParser(vocabulary, thinking=thinking is not False)


def _without_opening(weights: list[float], ids: Sequence[int], chat: Chat, opening: int) -> list[float]:
    """Nothing after the opening of an answer that is still to be written was written by the model."""
    if not opening:
        return weights
    assistant = chat.vocabulary.symbol_id("<|im_assistant|>")
    last = len(ids) - 1 - ids[::-1].index(assistant) if assistant in ids else len(ids)
    return [*weights[:last], *[0.0] * (len(ids) - last)]


def chat_of(encoder: Any) -> Chat:
    """The chat of a text encoder. Raises ConfigError when its vocabulary belongs to no official generation."""
    vocabulary = encoder.vocabulary
    if not isinstance(vocabulary, TiktokenVocabulary):
        raise ConfigError(
            "chat: this model's vocabulary has no control tokens for a conversation; leave --chat out and give plain text"
        )
    return Chat(vocabulary, encoder.files)
