"""`watersmeet data`: build, inspect and count training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Build or inspect training data.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.command()
def fetch(
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder for packages, pages and samples.")] = Path("data"),
    split: Annotated[str, typer.Option(metavar="SPLIT", help="all, train or val.")] = "all",
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this package; may be repeated.")] = None,
) -> None:
    """Fetch packages of pages, styles and fonts through npm and apt-get; what is there already stays."""
    from watersmeet.core.errors import UsageError
    from watersmeet.pipelines.data import packages as known

    if split not in ("all", "train", "val"):
        raise UsageError(f"--split is {split!r}, expected all, train or val")
    wanted = tuple(known.package(name) for name in only) if only else known.PACKAGES
    wanted = tuple(item for item in wanted if split in ("all", item.split))
    root.mkdir(parents=True, exist_ok=True)
    missing = known.fetch(root, wanted, say=typer.echo)
    typer.echo(f"{len(wanted) - len(missing)} of {len(wanted)} packages are in {root / 'packages'}")
    if missing:
        raise known.PackageError(f"{', '.join(missing)} could not be fetched; see the lines above")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="ShareGPT or LLaVA (.json, .jsonl), or .parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="D.jsonl", help="The rows, for `watersmeet finetune`.")],
) -> None:
    """Turn conversations of other forms into rows of messages; the first row that does not fit is an error."""
    from watersmeet.pipelines.finetune.convert import convert as work

    typer.echo(f"{work(source, out):,} rows in {out}")


@app.command()
def rows(
    pages: Annotated[list[Path], typer.Argument(metavar="PAGE", help="HTML files, or folders of such.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="D.jsonl", help="The rows, for `watersmeet finetune`.")],
    size: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="WxH", help="Of the views; 1280x757 and 390x844 when left out."),
    ] = None,
    reader: Annotated[
        str,
        typer.Option(metavar="HOW", help="picture: texts as use reads them; page: as the browser has them, quicker."),
    ] = "picture",
    worn: Annotated[int, typer.Option(min=0, help="Further rows of each view, as worse readers have it.")] = 0,
    hold_out: Annotated[
        float, typer.Option("--hold-out", metavar="SHARE", help="Share of the pages whose rows go to D.held.jsonl.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Which pages are held out.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Browsers at work at once.")] = 2,
) -> None:
    """Make rows for a layout model from pages of your own. Stop it at any time; it goes on from there."""
    from watersmeet.pipelines.browser.find import find_pages
    from watersmeet.pipelines.data import rows as work

    sizes = tuple(_size(text) for text in size) if size else work.SIZES
    recipe = work.Recipe(sizes=sizes, reader=reader, worn=worn, hold_out=hold_out, seed=seed)
    found = find_pages(pages)
    made = work.write_rows(found, out, recipe, processes=processes, say=typer.echo)
    typer.echo(f"{made.rows:,} rows of {len(found):,} pages in {out}")
    if made.held:
        typer.echo(f"{made.held:,} rows of held-out pages in {out.with_suffix('.held.jsonl')}")
    for reason, count in sorted(made.left_out.items()):
        typer.echo(f"left out: {count:,} view(s): {reason}")


def _size(text: str) -> tuple[int, int]:
    from watersmeet.core.errors import UsageError

    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise UsageError(f"--size is {text!r}, expected WIDTHxHEIGHT in px, e.g. 1280x757")
    return int(width), int(height)


@app.command()
def build(
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder for packages, pages and samples.")] = Path("data"),
    real: Annotated[int, typer.Option(min=0, help="Most views of package pages.")] = 6000,
    generated: Annotated[int, typer.Option(min=0, help="Views of generated pages.")] = 4500,
    validation: Annotated[int, typer.Option(min=0, help="Most views of the validation packages.")] = 120,
    variants: Annotated[int, typer.Option(min=1, max=8, help="Readings of each view, the first without faults.")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="Browsers at work at once.")] = 2,
    fetch_missing: Annotated[
        bool, typer.Option("--fetch/--no-fetch", help="Fetch missing packages with npm and apt-get.")
    ] = True,
) -> None:
    """Fetch packages, render their pages and generated ones, and write samples. Stop it at any time; it goes on from there."""
    from watersmeet.pipelines.data import build as work
    from watersmeet.pipelines.data.packages import fetch as fetch_packages

    root.mkdir(parents=True, exist_ok=True)
    if fetch_missing:
        fetch_packages(root, say=typer.echo)
    for split, name, count, extra in (("val", "val", validation, 0), ("train", "nano", real, generated)):
        if count or extra:
            out = root / name
            work.build(
                root, split, out, real=count, generated=extra, variants=variants, processes=processes, say=typer.echo
            )
            _print_stats(out)


@app.command()
def recordings(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for NAME.mp4 and NAME.json.")],
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many.")] = 10,
    split: Annotated[str, typer.Option(metavar="SPLIT", help="train or val.")] = "train",
    seed: Annotated[
        int, typer.Option(min=0, metavar="S", help="Number of the first; each number is one recording.")
    ] = 1,
    seconds: Annotated[
        float | None, typer.Option(min=2, metavar="T", help="About how long each is; 14 to 40 when left out.")
    ] = None,
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder of packages, as `data fetch` fills it.")] = Path(
        "data"
    ),
    processes: Annotated[int, typer.Option(min=1, help="Browsers at work at once.")] = 2,
) -> None:
    """Make screen recordings of scripted use, with what happens in them. Stop it at any time; it goes on from there."""
    from watersmeet.pipelines.data.packages import PackageError
    from watersmeet.pipelines.video_to_spec.recordings.build import build as work

    made = work(
        out,
        root / "packages",
        count=count,
        split=split,
        seed=seed,
        seconds=seconds,
        processes=processes,
        say=typer.echo,
    )
    typer.echo(f"{made.recordings:,} recordings in {out}, {made.seconds / 60:.1f} min, {made.steps:,} steps")
    for name, counts in (("actions", made.actions), ("variations", made.variations)):
        typer.echo(f"{name}: {json.dumps(counts, ensure_ascii=False)}")
    if made.lost:
        raise PackageError(f"{', '.join(made.lost)} could not be made; see the lines above")


@app.command()
def lessons(
    recordings: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of recordings, as `data recordings` fills it.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the lessons.")],
    processes: Annotated[int, typer.Option(min=1, help="Recordings looked at at once.")] = 2,
) -> None:
    """Look at recordings and write what a model is to say about each change. Stop it at any time; it goes on from there."""
    from watersmeet.pipelines.data.packages import PackageError
    from watersmeet.pipelines.video_to_spec.learn.prepare import prepare

    count, lost = prepare(recordings, out, processes=processes, say=typer.echo)
    typer.echo(f"{count:,} lessons in {out}")
    if lost:
        raise PackageError(f"{', '.join(lost)} could not be looked at; see the lines above")


@app.command()
def stats(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of samples.")] = Path("data/nano"),
) -> None:
    """Print counts and spreads of the samples in a folder."""
    _print_stats(path)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of samples.")],
    which: Annotated[str, typer.Argument(metavar="SAMPLE", help="Running number or id.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.png", help="Picture to write; a .txt lies beside it.")
    ] = Path("sample.png"),
) -> None:
    """Draw one sample: the tree's boxes left, the regions right, and the markup."""
    from watersmeet.pipelines.data.show import draw_sample

    picture, about = draw_sample(path, which)
    out.parent.mkdir(parents=True, exist_ok=True)
    picture.save(out)
    out.with_suffix(".txt").write_text(about, "utf-8")
    typer.echo(f"{about.splitlines()[0]}\n{out}")


def _print_stats(path: Path) -> None:
    from watersmeet.pipelines.data.build import stats as count

    for name, value in count(path).items():
        typer.echo(f"{name}: {json.dumps(value, ensure_ascii=False)}")
