"""``python -m partial_fc``: the command ``partial-fc``, also in an environment that knows nothing of the clone."""

import sys
from pathlib import Path

from partial_fc.utils.import_path import leave_current_folder

leave_current_folder()
TOOLS = Path(__file__).parents[1] / "tools"  # of a clone; an installed package lies beside this one
if TOOLS.is_dir():
    sys.path.append(str(TOOLS))

from partial_fc_tools.__main__ import run  # noqa: E402

if __name__ == "__main__":
    run()
