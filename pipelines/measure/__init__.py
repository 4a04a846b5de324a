"""Measured, not guessed: styles and pictures of a layout tree, taken from the pixels it was read from."""

from watersmeet.pipelines.measure.crops import crop_pictures
from watersmeet.pipelines.measure.styles import measure_tree

__all__ = ["crop_pictures", "measure_tree"]
