"""From a screen recording to a specification whose every claim names a time and a frame."""
