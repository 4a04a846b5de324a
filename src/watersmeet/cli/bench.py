"""The commands of `watersmeet bench`; the work is imported when one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Speed and scores, side by side with peers and baselines.", no_args_is_help=True)


@app.command("kernels")
def bench_kernels(
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="kda, experts, step, memory or training; all when left out."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write all numbers.")] = None,
) -> None:
    """Speed and memory of the operators beside their peers'."""
    from watersmeet.cli.bench_kernels import run as run_bench

    run_bench(parts=part or (), json_file=json_file)


@app.command("model")
def bench_model(
    size: Annotated[list[str] | None, typer.Option("--size", help="4m or 100m; both when left out.")] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", help="float32 or bfloat16; both when left out.")] = None,
    tokens: Annotated[int, typer.Option(help="Length of the prompt that is read.")] = 4096,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write all numbers.")] = None,
) -> None:
    """Decoding, reading and memory of whole models beside the peer's."""
    from watersmeet.cli.bench_model import run as run_bench

    run_bench(sizes=size or (), dtypes=dtype or (), tokens=tokens, json_file=json_file)


@app.command("startup")
def bench_startup(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each command.")] = 7,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write all numbers.")] = None,
) -> None:
    """What commands cost before they do anything, alone and beside 100 plugins."""
    from watersmeet.cli.bench_startup import run as run_bench

    run_bench(rounds=rounds, json_file=json_file)


@app.command("load")
def bench_load(
    model: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A published model folder; without it, 2 GB are made up.")
    ] = None,
) -> None:
    """Time and memory of loading a published model beside reading its files."""
    from watersmeet.cli.bench_load import run as run_bench

    run_bench(model)


@app.command("screenshot-to-code")
def bench_screenshot_to_code(
    model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="nano or a model folder; several are compared.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for tables and pages.")] = Path(
        "out/bench"
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many views.")] = None,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where `watersmeet data fetch` put the packages.")] = Path(
        "data"
    ),
    ablations: Annotated[bool, typer.Option("--ablations", help="Also without the picture, without regions.")] = False,
    pages: Annotated[
        list[Path] | None, typer.Option(metavar="PAGE", help="Instead: HTML files of yours, or folders of such.")
    ] = None,
    with_baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Also methods that know no model.")
    ] = True,
    regions: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where what was read of pictures is kept, to share between runs.")
    ] = None,
) -> None:
    """Scores on the validation pages, or on your own, with baselines; called again after a stop it goes on."""
    from watersmeet.cli.run import bench_screenshots

    bench_screenshots(
        models=model or ["nano"],
        out=out,
        limit=limit,
        data=data,
        ablations=ablations,
        pages=pages or [],
        with_baselines=with_baselines,
        regions=regions,
    )


@app.command("video-to-spec")
def bench_video_to_spec(
    model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="nano or a model folder; several are compared.")
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Recordings with their truth, from `watersmeet data recordings`.")
    ] = Path("data/recordings-val"),
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for tables and specifications.")
    ] = Path("out/bench-video"),
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many recordings.")] = None,
    blank: Annotated[bool, typer.Option("--blank", help="Each model also with its picture blanked.")] = False,
    with_baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Also the naive reader that knows no model.")
    ] = True,
) -> None:
    """Scores on recordings of which everything is known, with a baseline; called again after a stop it goes on."""
    from watersmeet.cli.run import bench_videos

    bench_videos(models=model or ["nano"], data=data, out=out, limit=limit, blank=blank, with_baseline=with_baseline)
