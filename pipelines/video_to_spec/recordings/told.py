"""Features and patterns that a recording shows, each with the frames that prove it."""

from bisect import bisect_left
from collections.abc import Sequence

from watersmeet.pipelines.video_to_spec.recordings.director import Act
from watersmeet.pipelines.video_to_spec.sentences import FEATURES, PATTERNS, feature
from watersmeet.pipelines.video_to_spec.spec import Claim, Evidence
from watersmeet.pipelines.video_to_spec.truth import Shown

_DONE = {"tab": "tabs", "page": "pagination", "theme": "theme switch", "card": "drag"}


def claims_of(
    acts: Sequence[Act], shown: Sequence[Shown], times_us: Sequence[int]
) -> tuple[tuple[Claim, ...], tuple[Claim, ...]]:
    """(features, patterns) of a recording whose frames are shown at `times_us`."""
    patterns: dict[str, list[Evidence]] = {}
    for one in shown:
        frame = bisect_left(times_us, one.start_s * 1e6 - 0.5)
        # between two frames, nobody has seen it
        if one.kind in PATTERNS and frame < len(times_us) and times_us[frame] / 1e6 < one.end_s:
            patterns.setdefault(one.kind, []).append(_cite(frame, times_us))
    features: dict[str, Claim] = {}
    for act in acts:
        proof = _cite(min(len(times_us) - 1, bisect_left(times_us, act.end * 1e6 - 0.5)), times_us)
        if act.pattern in _DONE:
            patterns.setdefault(_DONE[act.pattern], []).append(proof)
        if act.pattern in FEATURES and act.target and act.target not in features:
            sentence = feature(act.pattern, act.target)
            features[act.target] = Claim(name=act.target, description=sentence, evidence=(proof,))
    made = [
        Claim(name=name, description=PATTERNS[name], evidence=tuple(sorted(set(proofs), key=lambda one: one.frame)))
        for name, proofs in patterns.items()
    ]
    made.sort(key=lambda claim: (claim.evidence[0].frame, claim.name))
    return tuple(features.values()), tuple(made)


def _cite(frame: int, times_us: Sequence[int]) -> Evidence:
    return Evidence(t_s=times_us[frame] / 1e6, frame=frame)
