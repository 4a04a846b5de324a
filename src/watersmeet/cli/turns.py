"""Conversations with a fine-tuned model of our own layout: the form of its training is in the folder it was written to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.cli.generate import (
    Request,
    print_json,
    settings,
    shown_while_written,
    text_encoder,
    whole,
    write_after,
)
from watersmeet.core.errors import CheckpointError, DecodeError, UsageError

if TYPE_CHECKING:
    from watersmeet.pipelines.finetune.rows import Row
    from watersmeet.pipelines.models.local import LocalModel


def own_turns(spec: str) -> Mapping[str, Any] | None:
    """What a model folder says about how messages are told apart; None where it does not."""
    from watersmeet.core.graft import read_processor
    from watersmeet.pipelines.models.local import find_local

    try:
        found = read_processor(find_local(spec))["processor"].get("turns")
    except CheckpointError:
        return None  # whoever loads it says what is wrong
    return found if isinstance(found, Mapping) else None


def read_asked(request: Request) -> Row:
    """The prompt, or the file of messages, as a row of training data is read; nothing of it need be an answer."""
    from watersmeet.pipelines.finetune.rows import read_row
    from watersmeet.plugins.registry import get_registry

    if request.thinking is not None or request.effort is not None:
        raise UsageError("--thinking and --effort belong to official models; leave them out")
    kinds = get_registry().modality_names()
    if request.messages is None:
        system = [] if request.system is None else [{"role": "system", "content": request.system}]
        values: Any = {"messages": [*system, {"role": "user", "content": request.prompt}]}
        return read_row(values, "prompt", kinds)
    try:
        values = json.loads(request.messages.read_bytes())
    except OSError as error:
        raise DecodeError(f"{request.messages}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{request.messages}: not JSON ({error})") from error
    return read_row({"messages": values} if isinstance(values, list) else values, str(request.messages), kinds)


def answer_in_turns(request: Request, local: LocalModel, turns: Mapping[str, Any], asked: Row) -> None:
    """Answer on the terminal, or as one JSON document. Paths of media are relative to the file of messages."""
    from watersmeet.pipelines.finetune.dataset import encode_item
    from watersmeet.pipelines.finetune.media import Media
    from watersmeet.pipelines.finetune.turns import Delimiters, native_prompt
    from watersmeet.pipelines.models.reading import reading_of
    from watersmeet.pipelines.models.video import Sampling

    encoder, reading = text_encoder(local), reading_of(local)
    media = Media(root=Path() if request.messages is None else request.messages.parent)
    delimiters, video = Delimiters.of(turns, encoder), Sampling.of(local.recipe.get("video", {}))
    spans = native_prompt(asked, delimiters, encoder, lambda part: encode_item(part, reading, media, video))
    closing = delimiters.closing.get("assistant", ())[:1]
    ends = encoder.encode_markup(closing).data.tolist() if closing else []
    stop_ids = tuple(dict.fromkeys([*local.stop_ids, *ends]))
    text, result = shown_while_written(
        request, encoder, stop_ids, lambda on_id: write_after(request, local, spans, stop_ids, on_id)
    )
    if request.as_json:
        document = {"message": {"role": "assistant", "content": text}, "finished": result.stopped}
        document |= {"ids": whole(result), "stopped_by": result.stop_id, "logprob": result.logprob}
        print_json({**document, **settings(request, local, stop_ids)})
