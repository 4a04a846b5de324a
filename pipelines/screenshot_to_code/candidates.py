"""Trees that compete for one picture; the rendered score decides between them."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from watersmeet.pipelines.emit import emit
from watersmeet.pipelines.layout.repair import regroup
from watersmeet.pipelines.layout.tree import Node
from watersmeet.pipelines.screenshot_to_code.judge import Judge, Judged, try_judge, write_files


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A named tree, with its judgement once it was rendered, or the reason why it was not."""

    name: str
    tree: Node
    judged: Judged | None = None
    failure: str = ""

    @property
    def rank(self) -> float:
        return self.judged.scores.look if self.judged is not None else -1.0


def alternatives(tree: Node) -> list[Candidate]:
    """The model's tree, and the same leaves and semantic containers grouped anew by geometry."""
    made = [Candidate(name="the model's tree", tree=tree)]
    anew = regroup(tree)
    if anew != tree:
        made.append(Candidate(name="the model's tree, grouped by geometry", tree=anew))
    return made


def judge_all(
    candidates: list[Candidate], judge: Judge | None, pictures: Path, progress: Callable[[float], None]
) -> list[Candidate]:
    """Render and score each candidate; `pictures` is the folder whose `images` the trees' `src` refer to. Best first."""
    out = []
    for i, candidate in enumerate(candidates):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_files(folder, emit(candidate.tree, "html"))
            if (pictures / "images").is_dir():
                shutil.copytree(pictures / "images", folder / "images")
            judged, failure = try_judge(judge, folder / "index.html")
        out.append(Candidate(name=candidate.name, tree=candidate.tree, judged=judged, failure=failure))
        progress((i + 1) / len(candidates))
    # stable: the model's own tree goes first among equals
    return sorted(out, key=lambda c: -round(c.rank, 4))
