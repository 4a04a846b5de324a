"""The model that a training run starts from and how it is written at the end: a fresh one, or one that is there already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import ConfigError

if TYPE_CHECKING:
    from watersmeet.core.model.model import Model
    from watersmeet.core.training.config import LoraSection, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model to train. processor, files: what a checkpoint of it says besides weights. grafted_on: the directory whose
    files stay as they are, where only embedders that were added to it are trained. lora: the recipe of the adapters that
    the model has. base: the name of the model that was there."""

    model: Model
    processor: dict[str, Any]
    files: dict[str, bytes]
    grafted_on: Path | None = None
    lora: LoraSection | None = None
    base: str = ""

    def vocabulary(self) -> Any:
        """Of what the model writes, for showing ids as words; None where there is none."""
        from watersmeet.core.errors import WatersmeetError
        from watersmeet.plugins.registry import get_registry

        name = self.model.config.output_modality
        try:
            encoder = get_registry().encoder(name, self.processor["modalities"][name], files=self.files)
        except (WatersmeetError, KeyError):
            return None
        return getattr(encoder, "vocabulary", None)

    def save(self, out: Path) -> None:
        """Write directory `out`, replacing an older one: bfloat16 in our own layout, or the base with trained embedders.

        Adapters are written to `adapter` beside it, and then merged into the model, which has none afterwards.
        """
        import torch

        from watersmeet.core.checkpoint import save_checkpoint
        from watersmeet.core.graft import write_trained

        if self.lora is not None:
            from watersmeet.core.training.lora import merge_lora, save_adapter

            adapter = out.with_name("adapter")
            save_adapter(self.model, adapter, r=self.lora.r, alpha=self.lora.strength, base=self.base)
            merge_lora(self.model)
        if self.grafted_on is not None:
            write_trained(self.grafted_on, out, dict(self.model.embedders.items()), replace=True)
            return
        save_checkpoint(out, self.model, self.model.config, self.processor, self.files, dtype=torch.bfloat16)
        if self.base:
            self._read_back(out)

    def _read_back(self, out: Path) -> None:
        """Load what was written the way every command does. Raises CheckpointError when it is not what was trained."""
        import torch

        from watersmeet.core.errors import CheckpointError
        from watersmeet.pipelines.models.local import load_local

        written = load_local(str(out), dtype=torch.bfloat16).model.state_dict()
        for name, value in self.model.state_dict().items():
            # embedders are bfloat16 in the file and float32 in a model; some tensors are float32 in both
            forms = (value.cpu(), value.to("cpu", torch.bfloat16))
            found = written.get(name)
            if found is None or not any(torch.equal(found, form.to(found.dtype)) for form in forms):
                raise CheckpointError(
                    f"{out}: {name} is not what was trained after reading it back; is the disk full or failing?"
                )


def start_run(recipe: TrainConfig, dataset: Any) -> Start:
    """The model of a recipe: fresh with embedders for the dataset's modalities, or the one that `model.init` names.

    Raises ConfigError where dataset and recipe, or dataset and the model that is there, do not fit.
    """
    modalities = getattr(dataset, "modalities", None)
    if not modalities:
        raise ConfigError(f"dataset {recipe.dataset} has no attribute `modalities` (name -> settings), which is needed")
    if recipe.lora.r and (recipe.trainable or not recipe.model.init):
        raise ConfigError(
            "lora.r is set, but "
            + (
                "trainable names parts to train whole; leave one of the two out"
                if recipe.trainable
                else "model.init names no model to adapt"
            )
        )
    if recipe.model.init:
        return _continued(recipe, dataset, modalities, recipe.model.init)
    return Start(
        model=_fresh(recipe, dataset, modalities),
        processor={"modalities": _plain(modalities)},
        files=dict(getattr(dataset, "files", {})),
    )


def teacher_of(recipe: TrainConfig) -> Model | None:
    """The model that `loss.teacher` names."""
    if not recipe.loss.teacher:
        return None
    from watersmeet.core.training.precision import DTYPES
    from watersmeet.pipelines.models.local import load_local

    return load_local(recipe.loss.teacher, dtype=DTYPES[recipe.run.precision]).model


def _plain(modalities: Any) -> dict[str, dict[str, Any]]:
    """Encoder settings by modality as a checkpoint keeps them: JSON values, files apart."""
    return {name: {k: v for k, v in settings.items() if k != "files"} for name, settings in modalities.items()}


def _overrides(recipe: TrainConfig) -> dict[str, Any]:
    overrides = dict(recipe.model.overrides)
    if "full_attention_layers" in overrides:
        overrides["full_attention_layers"] = tuple(overrides["full_attention_layers"])
    return overrides


def _fresh(recipe: TrainConfig, dataset: Any, modalities: Any) -> Model:
    from watersmeet.core.config import preset
    from watersmeet.core.model.model import Model
    from watersmeet.plugins.registry import get_registry

    overrides = _overrides(recipe)
    if "vocab_size" not in overrides and getattr(dataset, "vocab_size", None):
        overrides["vocab_size"] = int(dataset.vocab_size)
    overrides.setdefault("output_modality", getattr(dataset, "output_modality", "text"))
    config = preset(recipe.model.preset).replace(**overrides)
    registry = get_registry()
    embedders = {name: registry.embedder(name, config.hidden_size, settings) for name, settings in modalities.items()}
    return Model(config, embedders)


def _continued(recipe: TrainConfig, dataset: Any, modalities: Any, init: str) -> Start:
    """A model of either layout. Its own configuration holds; `model.preset` is not read, and overrides are refused."""
    import torch

    from watersmeet.core.graft import grafted_names
    from watersmeet.pipelines.models.local import find_local, load_local

    if recipe.model.overrides:
        raise ConfigError(
            f"model.overrides ({', '.join(sorted(recipe.model.overrides))}) cannot change the model that model.init names; "
            "leave one of the two out"
        )
    folder = find_local(init)
    # a frozen trunk need not be float32: it is computed with in the dtype of the run, to which it would be rounded anyway
    frozen = bool(recipe.trainable) and all(entry.startswith("embedders.") for entry in recipe.trainable)
    half = (frozen or recipe.lora.r > 0) and recipe.run.precision == "bf16"
    local = load_local(init, dtype=torch.bfloat16 if half else torch.float32)
    model: Model = local.model
    for name, parameter in model.named_parameters():
        if half and name.startswith(tuple(f"{entry.rstrip('.')}." for entry in recipe.trainable)):
            parameter.data = parameter.data.float()
    known = local.recipe["modalities"]
    for name, settings in _plain(modalities).items():
        if name not in model.embedders:
            raise ConfigError(
                f"the dataset brings {name!r} but the model {init} reads {', '.join(model.embedders)}; "
                f"add it with `watersmeet graft --base {init} --modality {name}`"
            )
        differing = [k for k, v in settings.items() if k in known[name] and known[name][k] != v]
        if differing:
            k = differing[0]
            raise ConfigError(
                f"the dataset encodes {name!r} with {k} = {settings[k]!r} but the model {init} was made for "
                f"{known[name][k]!r}; change the dataset's option"
            )
    added = {f"embedders.{name}" for name in grafted_names(folder)}
    only_added = bool(recipe.trainable) and all(".".join(entry.split(".")[:2]) in added for entry in recipe.trainable)
    processor = dict(local.recipe) | dict(getattr(dataset, "processor", {}))
    if recipe.lora.r:
        from watersmeet.core.training.lora import add_lora

        lora = recipe.lora
        add_lora(model, r=lora.r, alpha=lora.strength, targets=lora.targets)
        return Start(model=model, processor=processor, files=local.files, lora=lora, base=init)
    grafted_on = folder if only_added else None
    return Start(model=model, processor=processor, files=local.files, grafted_on=grafted_on, base=init)
