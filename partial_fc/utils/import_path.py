"""The import path of a program that ``python -m`` runs."""

import os
import sys


def leave_current_folder() -> None:
    """Removes the current folder, which ``python -m`` puts first, as it may be a downloaded set; a clone stays."""
    clone = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if sys.path[0] == os.getcwd() != clone and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
