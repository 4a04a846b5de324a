"""Scores that show what matters in a page made from a picture, and that cannot be flattered."""

from watersmeet.pipelines.score.facts import PageFacts, ScoredLine, facts_from_page, facts_from_picture
from watersmeet.pipelines.score.scores import MEANINGS, Scores, failed_scores, score_pages

__all__ = [
    "MEANINGS",
    "PageFacts",
    "ScoredLine",
    "Scores",
    "facts_from_page",
    "facts_from_picture",
    "failed_scores",
    "score_pages",
]
