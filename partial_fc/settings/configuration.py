"""``generate_config`` fills ``config``, the settings of a training; default.py of a clone adds the user's config.py."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from easydict import EasyDict as edict

from .declarations import SETTINGS, describe_settings
from .precedence import heads_of, resolve_settings, todays_names, value_of
from .presets import dataset, loss, network

# What default.py of a clone passes on; it has a generate_config of its own.
__all__ = [
    "SETTINGS",
    "config",
    "dataset",
    "describe_settings",
    "heads_of",
    "loss",
    "network",
    "todays_names",
]


class Config(edict):
    """Settings, which can also be read by their names in earlier versions."""

    def __missing__(self, name):
        return value_of(self, name)

    def __getattr__(self, name):
        if name in SETTINGS.aliases:
            return value_of(self, name)
        raise AttributeError(f"there is no setting {name!r}")


config = Config(SETTINGS.defaults())  # generate_config replaces these


def generate_config(
    loss_name=None,
    dataset_name=None,
    network_name=None,
    changes=None,
    config_file=None,
    trainer="mxnet",
    recipe=None,
    trust_code=False,
    *,
    user_config: Mapping[str, Any] = MappingProxyType({}),
):
    """Fills ``config`` with the settings of a training and returns it.

    Args:
        loss_name, dataset_name, network_name: Names of presets; None takes the user's or the default ones.
        changes, config_file, trainer, recipe, trust_code, user_config: See resolve_settings.

    Raises:
        SettingsError: A name is unknown, or a value is not allowed.
    """
    presets = {"loss": loss_name, "dataset": dataset_name, "network": network_name}
    changes = dict(changes or {}, **{kind: name for kind, name in presets.items() if name is not None})
    settings = resolve_settings(changes, trainer, user_config, config_file, recipe, trust_code)
    config.clear()
    config.update(settings)
    return config
