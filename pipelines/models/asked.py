"""A local model that holds conversations, asked with words the way a server is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from watersmeet.core.errors import UsageError
from watersmeet.core.stream import Stream
from watersmeet.pipelines.models.local import LocalModel
from watersmeet.plugins.registry import get_registry

if TYPE_CHECKING:
    from watersmeet.pipelines.models.remote import Part


@dataclass(frozen=True, kw_only=True)
class AskedModel:
    """`local`, whose vocabulary has the control tokens of a conversation. Answers are greedy and without reasoning."""

    local: LocalModel
    max_tokens: int = 8192

    @property
    def name(self) -> str:
        """As the model was named on the command line."""
        return self.local.name

    @property
    def sees(self) -> bool:
        """Whether pictures can be shown to it."""
        return picture_modality(self.local) is not None

    def ask(self, prompt: str, picture: Image.Image, *, max_tokens: int | None = None) -> str:
        """The text that the model answers to `prompt` about `picture`; as `ask_parts`."""
        return self.ask_parts([picture, prompt], max_tokens=max_tokens)

    def ask_parts(
        self, parts: Sequence[Part], *, max_tokens: int | None = None, schema: Mapping[str, Any] | None = None
    ) -> str:
        """The text that the model answers to texts and pictures in this order; a model that does not see gets the texts.

        A call of a tool, or reasoning, is not part of it. schema: nothing holds the answer to it here, so it should stand
        in the texts too.
        """
        from watersmeet.core.generate import generate

        encoder = self.local.encoders[self.local.model.config.output_modality]
        chat = encoder.chat()
        reader = picture_modality(self.local)
        eyes = None if reader is None else self.local.encoders[reader]
        pictures: list[Image.Image] = []
        content: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, str):
                content.append({"type": "text", "text": part})
            elif eyes is not None:
                content.append({"type": "image", "image": len(pictures), "size": list(part.size)})
                pictures.append(part)
        spans, parser, ends = chat.prompt(
            [{"role": "user", "content": content}],
            encoder,
            None if eyes is None else lambda shown: eyes.encode(pictures[shown.source]),
        )
        [result] = generate(
            self.local.model,
            [Stream(spans=tuple(spans))],
            max_new_tokens=max_tokens or self.max_tokens,
            eos_id=tuple(dict.fromkeys((*self.local.stop_ids, *ends))),
        )
        parser.feed(result.ids)
        parser.close()
        return str(parser.answer().content)


def asked(model: Any, max_tokens: int) -> Any:
    """`model`, or a way to ask it when it is a local one whose vocabulary is that of an official checkpoint."""
    if not isinstance(model, LocalModel):
        return model
    encoder = model.encoders.get(model.model.config.output_modality)
    talks = encoder is not None and encoder.settings.get("tokenizer") == "tiktoken"
    return AskedModel(local=model, max_tokens=max_tokens) if talks else model


def picture_modality(local: LocalModel) -> str | None:
    """The one modality through which a model sees pictures, or None.

    Raises UsageError for several: which of them a message means, nobody said.
    """
    registry = get_registry()
    # regions are what was read of a picture; they stand beside it and are none themselves
    names = [
        name
        for name in local.encoders
        if name != "regions" and any(kind.startswith("image/") for kind in registry.modality(name).media_types)
    ]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} read pictures in {local.name}, expected one modality that does")
    return names[0] if names else None
