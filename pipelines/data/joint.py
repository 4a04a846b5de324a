"""One set of both tasks, so that one model learns both: layouts of screenshots and steps of recordings."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.stream import Stream
from watersmeet.pipelines.data.dataset import LayoutDataset
from watersmeet.pipelines.video_to_spec.learn.dataset import StepDataset, steps_encoders
from watersmeet.pipelines.video_to_spec.vocabulary import tokenizer_model


class JointDataset:
    """Both sets one behind the other, the steps `repeat` times: there are fewer recordings than pages."""

    def __init__(self, layouts: LayoutDataset, steps: StepDataset, repeat: int) -> None:
        self.layouts, self.steps, self.repeat = layouts, steps, repeat

    def __len__(self) -> int:
        return len(self.layouts) + self.repeat * len(self.steps)

    def sample(self, index: int, rng: np.random.Generator) -> Stream:
        """Stream of sample `index`; pure, see the two sets."""
        if index < len(self.layouts):
            return self.layouts.sample(index, rng)
        return self.steps.sample((index - len(self.layouts)) % len(self.steps), rng)

    @property
    def modalities(self) -> dict[str, dict[str, Any]]:
        """Settings of the modalities that occur, by name."""
        return self.layouts.modalities | {"video": self.steps.encoders["video"].settings}

    @property
    def files(self) -> dict[str, bytes]:
        """Files to keep beside weights: the tokenizer's model."""
        return self.layouts.files

    @property
    def vocab_size(self) -> int:
        return self.layouts.vocab_size

    @property
    def pad_id(self) -> int:
        return self.layouts.pad_id


def open_joint(
    split: str,
    *,
    path: str,
    val_path: str,
    lessons: str,
    val_lessons: str,
    repeat: int = 4,
    val_limit: int = 120,
    **options: Any,
) -> JointDataset:
    """The sets of a training recipe: `path` and `lessons` for "train", the others for "val"."""
    train = split == "train"
    both = tokenizer_model()
    layouts = (
        LayoutDataset(path, "train", vocabulary=both, **options)
        if train
        else LayoutDataset(val_path, "val", limit=val_limit, vocabulary=both, **options)
    )
    encoders = steps_encoders(layouts.encoders["text"])
    steps = StepDataset(lessons if train else val_lessons, encoders, split, **options)
    return JointDataset(layouts, steps, repeat if train else 1)
