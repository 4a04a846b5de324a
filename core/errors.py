"""Errors that are meant for the person who runs watersmeet, each one sentence long.

    WatersmeetError
    |-- UsageError         the request makes no sense as written (exit code 2)
    |-- ConfigError        a configuration value breaks a rule
    |-- DecodeError        one item of media cannot be read; skippable when many are processed
    |-- CheckpointError    a checkpoint is missing, damaged or of another shape
    |-- PluginError        a plugin is missing, failed to load or broke the contract
    |-- RenderError        a page could not be rendered
    `-- RemoteError        a model server did not answer as expected

A message says what was found, what was expected, which item it was about, and what to change.
Anything that is not a `WatersmeetError` is a bug and keeps its traceback.
"""


class WatersmeetError(Exception):
    """Base of every error that carries a message for the user; `exit_code` is what a command returns."""

    exit_code = 1


class UsageError(WatersmeetError):
    """The request makes no sense as written: unknown option, missing input, contradicting flags."""

    exit_code = 2


class ConfigError(WatersmeetError):
    """A configuration value breaks a rule; the message names field, value and rule."""


class DecodeError(WatersmeetError):
    """One item of media cannot be read. Loops over many items may count it and go on."""


class CheckpointError(WatersmeetError):
    """A checkpoint is missing, damaged, or does not fit the model it is loaded into."""


class PluginError(WatersmeetError):
    """A plugin is missing, failed to load, or broke the contract; the message names its owner."""


class RenderError(WatersmeetError):
    """A page could not be rendered."""


class RemoteError(WatersmeetError):
    """A model server did not answer, or answered something unusable."""
