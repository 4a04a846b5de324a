"""Rows in official forms: pictures in their places, checkpoints with a template of their own."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from watersmeet.cli.graft import graft_command
from watersmeet.core.stream import NO_TARGET
from watersmeet.pipelines.finetune.rows import RowError

RNG = np.random.default_rng(0)

# the form of K2 in Jinja, with a sentence of its own in front and white space cut from answers
TEMPLATE = """{%- if messages[0].role != 'system' -%}<|im_system|>system<|im_middle|>Be good.<|im_end|>{%- endif -%}
{%- for m in messages -%}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>
{%- if m.content is string -%}{{ m.content | trim }}
{%- else -%}{%- for p in m.content -%}
{%- if p.type == 'text' -%}{{ p.text }}
{%- else -%}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>{%- endif -%}
{%- endfor -%}{%- endif -%}<|im_end|>{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""


def seen(stream, vocabulary):
    """(everything as text with media as [n], what is learnt as text), by the stream's own targets."""
    whole, learnt = [], []
    for span in stream.spans:
        if span.modality == "text":
            whole += span.data.tolist()
        else:
            whole.append(f"[{span.n}]")
        learnt += [int(t) for t in span.targets if int(t) != NO_TARGET]

    def text(ids):
        return "".join(
            i if isinstance(i, str) else vocabulary.token_bytes[i].decode("latin-1") or vocabulary.name(i) for i in ids
        )

    return text(whole), text(learnt)


@pytest.mark.parametrize(
    ("model", "before", "after"),
    [
        ("k2", "<|media_begin|>image<|media_content|>[4]<|media_end|>What", "Red.<|im_end|>"),
        ("k3", "<|media_begin|>image 16x12<|media_content|>[4]<|media_end|>What", "<|open|>response<|sep|>Red."),
    ],
)
def test_a_picture_stands_in_its_place_and_is_never_learnt(models, rows, kit, tmp_path, model, before, after):
    settings = [f"image.{name}={value}" for name, value in (("scale", 1.0), ("patch", 8), ("max_patches", 16))]
    graft_command(getattr(models, model), "image", tmp_path / "seeing", assignments=settings)
    (tmp_path / "a.png").write_bytes(kit.png(size=(16, 12)))
    data = kit.open(rows([kit.about("a.png", "Red.", "What?")]), str(tmp_path / "seeing"))
    whole, learnt = seen(data.sample(0, RNG), data.reading.writer.vocabulary)
    assert before in whole and learnt.startswith(after) and "media" not in learnt
    with pytest.raises(RowError, match="no words for 'regions'|no modality"):
        row = kit.talk([{"type": "regions", "regions": {"texts": []}}], "Red.")
        kit.open(rows([row]), str(tmp_path / "seeing")).sample(0, RNG)


@pytest.fixture
def templated(models, tmp_path):
    folder = shutil.copytree(models.k2, tmp_path / "templated")
    (Path(folder) / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def test_a_template_of_the_checkpoint_is_followed_and_its_own_words_are_not_learnt(rows, kit, templated):
    row = {
        "messages": [
            *kit.talk("one?", " Yes. ")["messages"],
            {"role": "user", "content": "two?"},
            {"role": "assistant", "content": "No.", "weight": 0.5},
        ]
    }
    data = kit.open(rows([row]), templated)
    stream = data.sample(0, RNG)
    whole, learnt = seen(stream, data.reading.writer.vocabulary)
    assert whole.startswith("<|im_system|>system<|im_middle|>Be good.<|im_end|><|im_user|>user<|im_middle|>one?")
    assert learnt == "Yes.<|im_end|>No.<|im_end|>"
    assert sorted(set(torch.cat([span.weight for span in stream.spans]).tolist())) == [0.0, 0.5, 1.0]


def test_parts_of_different_weight_in_a_template_and_refused_where_it_changes_them(rows, kit, templated):
    parts = [{"type": "text", "text": "It is ", "weight": 0}, {"type": "text", "text": "blue."}]
    data = kit.open(rows([kit.talk("one?", parts)]), templated)
    assert seen(data.sample(0, RNG), data.reading.writer.vocabulary)[1].strip() == "blue.<|im_end|>"
    spaced = [{"type": "text", "text": " It is ", "weight": 0}, {"type": "text", "text": "blue. "}]
    with pytest.raises(RowError, match="cannot be told apart"):
        kit.open(rows([kit.talk("one?", spaced)]), templated).sample(0, RNG)


def test_a_message_that_a_template_drops_is_told(rows, kit, templated):
    path = Path(templated) / "chat_template.jinja"
    path.write_text(TEMPLATE.replace("{%- for m in messages -%}", "{%- for m in messages[:2] -%}"))
    row = {"messages": [*kit.talk("one?", "Yes.")["messages"], *kit.talk("two?", "No.")["messages"]]}
    with pytest.raises(RowError, match="message 2 does not appear"):
        kit.open(rows([row]), templated).sample(0, RNG)
