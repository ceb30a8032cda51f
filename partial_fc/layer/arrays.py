"""Arrays of either framework: functions with an argument ``xp``, the module numpy or torch, take and return its arrays.

They use only what both modules have under the same name, so that they also run on a GPU, without a copy to the host.
"""

from __future__ import annotations

from typing import Any

Array = Any
