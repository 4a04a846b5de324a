"""Trees that compete for one picture; the rendered score decides between them."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from watersmeet.pipelines.emit import emit
from watersmeet.pipelines.layout.complete import attach_shapes
from watersmeet.pipelines.layout.nest import nest
from watersmeet.pipelines.layout.repair import regroup
from watersmeet.pipelines.layout.tree import Node
from watersmeet.pipelines.measure import crop_pictures, measure_tree
from watersmeet.pipelines.screenshot_to_code.judge import Judge, Judged, try_judge, write_files
from watersmeet.pipelines.screenshot_to_code.read import Screenshot

IMAGES = "images"  # where `crop_pictures` puts its files


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A named, measured tree and the folder of its cropped pictures, with its judgement once it was rendered."""

    name: str
    tree: Node
    folder: Path
    judged: Judged | None = None
    failure: str = ""

    @property
    def rank(self) -> float:
        return self.judged.scores.look if self.judged is not None else -1.0


def measured(name: str, tree: Node, shot: Screenshot, folder: Path) -> Candidate:
    """The tree with styles and pictures taken from the screenshot; the pictures are written below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = crop_pictures(measure_tree(tree, shot.picture, shot.regions), shot.picture, folder)
    return Candidate(name=name, tree=tree, folder=folder)


def alternatives(tree: Node, shot: Screenshot, scratch: Path) -> list[Candidate]:
    """The model's tree; the same with every found box; and both with their leaves grouped anew by geometry."""
    tree = nest(tree, shot.regions)
    own = measured("the model's tree", tree, shot, scratch / "own")
    full = nest(attach_shapes(tree, shot.regions), shot.regions)
    made = (
        [own]
        if full == tree
        else [own, measured("the model's tree with every found box", full, shot, scratch / "full")]
    )
    for candidate in tuple(made):
        anew = regroup(candidate.tree)
        if anew != candidate.tree:
            made.append(replace(candidate, name=f"{candidate.name}, grouped by geometry", tree=anew))
    return made


def judge_all(
    candidates: list[Candidate],
    judge: Judge | None,
    scratch: Path,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Candidate]:
    """Render and score each candidate at the picture's size, best first; the model's own tree goes first among equals."""
    out = []
    for i, candidate in enumerate(candidates):
        folder = scratch / f"render-{i}"
        write_page(candidate, "html", folder)
        judged, failure = try_judge(judge, folder / "index.html", narrow=False)
        out.append(replace(candidate, judged=judged, failure=failure))
        progress((i + 1) / len(candidates))
    return sorted(out, key=lambda c: -round(c.rank, 4))


def write_page(candidate: Candidate, target: str, folder: Path, title: str = "Page") -> tuple[str, ...]:
    """Write the candidate's code and pictures into `folder`; returns the names of the code files."""
    files = emit(candidate.tree, target, title=title)
    write_files(folder, files)
    pictures = candidate.folder / IMAGES
    if pictures.is_dir():
        # a React project serves pictures from beside its page
        shutil.copytree(pictures, folder / IMAGES, dirs_exist_ok=True)
    return tuple(files)
