"""The command line: what there is and with which options. The work is imported when a command runs.

Exit codes: 0 done; 1 the work failed (one sentence on stderr, no traceback unless --debug); 2 wrong usage;
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from watersmeet import __version__
from watersmeet.cli.bench import app as bench_app
from watersmeet.core.errors import WatersmeetError

INTERRUPTED = 130

app = typer.Typer(
    name="watersmeet",
    help="Screenshots to code and other work on one stream of tokens, with a small local model.",
    epilog="--debug, anywhere on the line, shows the traceback of an error.",
    # plain help needs no formatting library, which keeps it quick
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench", rich_help_panel=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"watersmeet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="Name from `watersmeet pipelines`.")],
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT", help="Files to work on.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="nano, a checkpoint folder, or openai:NAME@URL.")
    ] = "nano",
    target: Annotated[
        str | None, typer.Option(metavar="TARGET", help="What to write, e.g. html, tailwind or react.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the pipeline; may be given several times."),
    ] = None,
) -> None:
    """Run a pipeline on files and write a folder of results."""
    from watersmeet.cli.run import run_pipeline

    run_pipeline(pipeline, inputs, out=out, model=model, target=target, assignments=settings or [])


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text to continue, or to answer.")] = None,
    model: Annotated[str, typer.Option(metavar="MODEL", help="nano or a model folder of either layout.")] = "nano",
    ids: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Instead of a prompt: a list of lists of ids.")
    ] = None,
    max_new: Annotated[int, typer.Option("--max-new", min=1, metavar="N", help="At most so many new ids.")] = 256,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest id.")] = False,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Instead of what the checkpoint advises, or 1.")
    ] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", min=0.0, max=1.0, help="The same.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal texts.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Answer the prompt, in the model's form of a conversation.")
    ] = False,
    messages: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Instead of a prompt: a conversation, perhaps with tools.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message before the prompt.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Reason first, or not; else as the model does.")
    ] = None,
    effort: Annotated[str | None, typer.Option(metavar="LEVEL", help="How much to reason: low, high or max.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after ids that end an output.")] = False,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, ...")] = "cpu",
    packed: Annotated[bool, typer.Option("--packed", help="Keep MXFP4 experts packed.")] = False,
) -> None:
    """Continue a text, answer a question, or continue lists of ids."""
    from watersmeet.cli.generate import Request, generate_command

    generate_command(
        Request(
            model=model,
            prompt=prompt,
            ids=ids,
            messages=messages,
            max_new=max_new,
            greedy=greedy,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            chat=chat,
            system=system,
            thinking=thinking,
            effort=effort,
            as_json=as_json,
            ignore_eos=ignore_eos,
            dtype=dtype,
            device=device,
            packed=packed,
        )
    )


@app.command()
def pipelines() -> None:
    """List the tasks that can be run."""
    from watersmeet.cli.lists import pipeline_lines

    _print(pipeline_lines())


@app.command()
def modalities() -> None:
    """List what a stream can be made of."""
    from watersmeet.cli.lists import modality_lines

    _print(modality_lines())


models_app = typer.Typer(help="List the built-in models and the forms of --model, or look into one.")
app.add_typer(models_app, name="models", rich_help_panel=None)


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the built-in models and the forms of --model, or look into one."""
    from watersmeet.cli.lists import model_lines

    if context.invoked_subcommand is None:
        _print(model_lines())


@models_app.command("show")
def models_show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="nano, a model folder of either layout, or a preset.")],
) -> None:
    """Layers, parameters by part, and memory of one stream."""
    from watersmeet.cli.models import show_lines

    _print(show_lines(model))


@models_app.command("new")
def models_new(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The new model folder.")],
    rows: Annotated[
        list[Path], typer.Option("--rows", metavar="D.jsonl", help="Conversations, whose words make the vocabulary.")
    ],
    preset: Annotated[str, typer.Option(metavar="PRESET", help="The shape: micro or nano.")] = "micro",
    modality: Annotated[
        str | None, typer.Option(metavar="NAMES", help="What it reads besides text, joined by commas.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="MODALITY.KEY=VALUE", help="A setting of an encoder.")
    ] = None,
    vocab: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many ids.")] = 512,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights.")] = 0,
) -> None:
    """Write a small model that has learnt nothing yet, to teach with `watersmeet finetune`."""
    from watersmeet.cli.fresh import new_command

    _print(
        [
            new_command(
                out, rows=rows, shape=preset, modality=modality, assignments=settings or [], vocab=vocab, seed=seed
            )
        ]
    )


@models_app.command("widen")
def models_widen(
    base: Annotated[str, typer.Option("--base", metavar="MODEL", help="nano or a model folder.")],
    modality: Annotated[
        list[str], typer.Option("--modality", metavar="NAME[=LIKE]", help="To add; LIKE gives its weights. May repeat.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder that is not there yet.")],
    vocabulary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A sentencepiece model; names that both know keep their rows.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="MODALITY.KEY=VALUE", help="A setting of an encoder.")
    ] = None,
) -> None:
    """Give a model further modalities and a larger vocabulary; what it knows stays."""
    from watersmeet.cli.models import widen_model

    for line in widen_model(base, modality, out, vocabulary, settings or []):
        typer.echo(line)


@models_app.command("logits")
def models_logits(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="nano or a model folder of either layout.")],
    ids: Annotated[Path, typer.Option(metavar="FILE.json", help="A list of lists of ids.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.safetensors", help="Where to write.")],
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="float32 or bfloat16.")] = "float32",
    cache: Annotated[bool, typer.Option("--cache", help="One token at a time through the cache.")] = False,
    packed: Annotated[bool, typer.Option("--packed", help="Keep MXFP4 experts packed.")] = False,
) -> None:
    """Write the logits of every token, to compare with other implementations."""
    from watersmeet.cli.models import logits_command

    _print([logits_command(model, ids, out, dtype=dtype, cache=cache, packed=packed)])


@app.command()
def export(
    model: Annotated[str, typer.Option(metavar="MODEL", help="nano or a model folder of either layout.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new model folder.")],
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="auto (as stored, bfloat16 for our own layout), bfloat16 or float32.")
    ] = "auto",
    mxfp4: Annotated[bool, typer.Option("--mxfp4", help="Routed experts in MXFP4.")] = False,
    rule: Annotated[str, typer.Option(metavar="RULE", help="Scales of MXFP4: packer or floor.")] = "packer",
) -> None:
    """Write a model in the published layout, for other engines; reads it back and compares."""
    from watersmeet.cli.export import export_command

    _print(export_command(model, out, dtype=dtype, mxfp4=mxfp4, rule=rule))


plugins_app = typer.Typer(help="List plugins, check one, or begin one.")
app.add_typer(plugins_app, name="plugins", rich_help_panel=None)


@plugins_app.callback(invoke_without_command=True)
def plugins(
    context: typer.Context,
    strict: Annotated[bool, typer.Option("--strict", help="Fail when a plugin failed to load.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of lines.")] = False,
) -> None:
    """List plugins, their packages and their faults."""
    if context.invoked_subcommand is None:
        from watersmeet.cli.plugins import list_command

        list_command(strict=strict, as_json=as_json)


@plugins_app.command("check")
def plugins_check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A plugin, its package, a modality or a pipeline.")],
    items: Annotated[
        list[str] | None, typer.Option("--item", metavar="FILE", help="An example to read; may be given several times.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the encoder or pipeline.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of lines.")] = False,
) -> None:
    """Hold a plugin against the contract and say what to change."""
    from watersmeet.cli.plugins import check_command

    if not check_command(name, items=items or [], assignments=settings or [], as_json=as_json):
        raise typer.Exit(1)


@plugins_app.command("new")
def plugins_new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it brings, e.g. time-series.")],
    kind: Annotated[str, typer.Option(metavar="KIND", help="modality or pipeline.")] = "modality",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Its folder, instead of watersmeet-NAME.")
    ] = None,
) -> None:
    """Write the skeleton of a plugin's package, with tests that pass."""
    from watersmeet.cli.plugins import new_command

    _print(new_command(name, kind=kind, out=out))


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The recipe.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Instead of the recipe's `run.out`.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's number of steps.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the recipe's seed.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", min=16, help="Instead of the recipe's tokens of a batch.")
    ] = None,
    save_every: Annotated[
        int | None, typer.Option("--save-every", min=0, help="Steps between checkpoints, instead of the recipe's.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu keeps off a GPU that is there.")] = None,
    max_minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop with a checkpoint after that time; the next call goes on.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; an earlier run is moved aside.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is learnt, by what and for how long; train nothing.")
    ] = False,
) -> None:
    """Train a model by a recipe, or go on with it."""
    from watersmeet.cli.train import train_command

    summary = train_command(
        config,
        steps=steps,
        seed=seed,
        device=device,
        fresh=fresh,
        max_minutes=max_minutes,
        out=out,
        batch_tokens=batch_tokens,
        save_every=save_every,
        dry_run=dry_run,
    )
    if summary is not None and summary.stopped == "signal":
        raise typer.Exit(INTERRUPTED)


@app.command()
def finetune(
    model: Annotated[str, typer.Option(metavar="MODEL", help="nano or a model folder of either layout.")],
    data: Annotated[Path, typer.Option(metavar="D.jsonl", help="Conversations, one a line, or a tar of samples.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Checkpoints, and the finished model.")],
    lora: Annotated[
        str | None, typer.Option(metavar="r=16", help="Train adapters: r=16[,alpha=32][,targets=q_proj+experts.w13].")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="C.toml", help="Tables of a recipe that change the defaults.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Without it, one epoch.")] = None,
    epochs: Annotated[float | None, typer.Option(min=0.01, help="Instead: how often to read the rows.")] = None,
    eval_data: Annotated[
        Path | None,
        typer.Option("--eval-data", metavar="E.jsonl", help="Held-out rows; DIR/model is what did best on them."),
    ] = None,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", min=1, help="Steps between evaluations; ten of them when left out.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many evaluations in a row that were no better.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Order of the rows, and first weights.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", min=16, help="Tokens of a batch; no row may have more.")
    ] = None,
    save_every: Annotated[int | None, typer.Option("--save-every", min=0, help="Steps between checkpoints.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu keeps off a GPU that is there.")] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the media; without it, the folder of the rows.")
    ] = None,
    urls: Annotated[bool, typer.Option("--urls", help="Fetch media from https addresses.")] = False,
    too_long: Annotated[
        str | None, typer.Option("--too-long", metavar="HOW", help="Rows longer than a batch: error, or drop.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop with a checkpoint after that time; the next call goes on.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; an earlier run is moved aside.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is learnt, by what and for how long; train nothing.")
    ] = False,
) -> None:
    """Teach a model from conversations, or go on with that; writes DIR/model."""
    from watersmeet.cli.finetune import Request, finetune_command

    summary = finetune_command(
        Request(
            model=model,
            data=data,
            out=out,
            lora=lora,
            config=config,
            steps=steps,
            seed=seed,
            batch_tokens=batch_tokens,
            save_every=save_every,
            device=device,
            root=root,
            urls=urls,
            too_long=too_long,
            fresh=fresh,
            dry_run=dry_run,
            max_minutes=max_minutes,
            epochs=epochs,
            eval_data=eval_data,
            eval_every=eval_every,
            patience=patience,
        )
    )
    if summary is not None and summary.stopped == "signal":
        raise typer.Exit(INTERRUPTED)


@app.command()
def graft(
    base: Annotated[str, typer.Option(metavar="MODEL", help="nano or a model folder of either layout.")],
    modality: Annotated[
        str, typer.Option(metavar="NAMES", help="Modalities to add, joined by commas; see `watersmeet modalities`.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new model folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="MODALITY.KEY=VALUE", help="A setting of an added modality's encoder."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the new embedders' first weights.")] = 0,
) -> None:
    """Add embedders of further modalities to a model; its own weights stay as they are."""
    from watersmeet.cli.graft import graft_command

    _print([graft_command(base, modality, out, assignments=settings or [], seed=seed)])


@app.command()
def embed(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT", help="In order: text:WORDS, ids:FILE.json, MODALITY:FILE, or a file."),
    ],
    model: Annotated[str, typer.Option(metavar="MODEL", help="nano or a model folder of either layout.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.safetensors", help="Where to write.")],
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="bfloat16 or float32.")] = "bfloat16",
) -> None:
    """Write the input embeddings of a mixed prompt, for engines that take such."""
    from watersmeet.cli.embed import embed_command

    _print([embed_command(model, inputs, out, dtype=dtype)])


# the sub-commands of `data` are known to its own module alone, which is imported only to run one of them
@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def data(context: typer.Context) -> None:
    """Build or inspect training data."""
    from watersmeet.cli.data import app as data_app

    typer.main.get_command(data_app).main(args=context.args, prog_name="watersmeet data")


def _print(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)


def run_command_line(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors become one sentence on stderr."""
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="watersmeet")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if code == INTERRUPTED:
            _say("stopped")
        return code
    except KeyboardInterrupt:
        _say("stopped")
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; writing what is left in the buffers would fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except WatersmeetError as error:
        if debug:
            traceback.print_exc()
        _say(_one_line(str(error)))
        return error.exit_code
    except OSError as error:
        if debug:
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or _one_line(str(error))}")
        return 1
    except Exception as error:  # a bug of ours or of a plugin: still one sentence, and --debug shows the traceback
        if debug:
            traceback.print_exc()
        _say(f"unexpected {type(error).__name__}: {_one_line(str(error))} (--debug shows where; please report it)")
        return 1
    return 0


def _say(sentence: str) -> None:
    print(f"watersmeet: {sentence}", file=sys.stderr, flush=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())
