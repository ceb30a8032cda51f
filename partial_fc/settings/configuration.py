"""``generate_config`` fills ``config``, the settings of a training; default.py of a clone adds the user's config.py."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from easydict import EasyDict as edict

from ..training.heads import Head
from .declarations import SETTINGS, describe_settings
from .precedence import heads_of, resolve_settings, todays_names, value_of
from .presets import dataset, loss, network

# The names that default.py of a clone exports, except for generate_config, which it defines itself.
__all__ = ["SETTINGS", "config", "dataset", "describe_settings", "heads", "heads_of", "loss", "network", "todays_names"]


class Config(edict):
    """Settings, which can also be read by their names in earlier versions."""

    def __missing__(self, name):
        return value_of(self, name)

    def __getattr__(self, name):
        if name in SETTINGS.aliases:
            return value_of(self, name)
        raise AttributeError(f"there is no setting {name!r}")


# generate_config replaces both
config = Config(SETTINGS.defaults())
heads = [Head("", config)]  # which are read once, because their file may change afterwards


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
    """Fills ``config`` with the settings of a training, and ``heads`` with its heads; returns ``config``.

    Args:
        loss_name, dataset_name, network_name: Names of presets; None takes the user's or the default ones.
        changes, config_file, trainer, recipe, trust_code, user_config: See resolve_settings.

    Raises:
        SettingsError: A name is unknown, or a value is not allowed.
    """
    presets = {"loss": loss_name, "dataset": dataset_name, "network": network_name}
    changes = dict(changes or {}, **{kind: name for kind, name in presets.items() if name is not None})
    settings, of_settings = resolve_settings(changes, trainer, user_config, config_file, recipe, trust_code)
    config.clear()
    config.update(settings)
    heads[:] = [head._replace(settings=Config(head.settings)) for head in of_settings]
    return config
