"""The settings of a training with those of config.py: ``generate_config`` fills ``config``.

partial_fc/settings/declarations.py declares every setting with its default and bounds, and presets.py beside it the
presets of losses, data sets and networks. Relative paths start at the current folder.
"""

from partial_fc.settings import configuration
from partial_fc.settings.configuration import *  # noqa: F403
from partial_fc.utils.user_code import errors_of

with errors_of("config.py failed"):
    from config import config as user_config


def generate_config(*names, **arguments):
    """Fills ``config`` with the settings of a training; see partial_fc.settings.configuration.generate_config."""
    return configuration.generate_config(*names, user_config=user_config, **arguments)
