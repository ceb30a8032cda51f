"""The notebooks of docs/notebooks run, and are stored with small outputs that name no machine."""

import json
import re
from importlib.util import find_spec

import pytest

from notebooks import FOLDER, execute

NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
FOLDERS = re.compile(r"/(home|root|tmp|dev/shm|work|usr|opt)/|site-packages")


@pytest.mark.slow
@pytest.mark.thorough  # tests of networks of timm and of the pages' programs are similar
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs(name, tmp_path):
    if not all(map(find_spec, ("nbclient", "ipykernel", "timm"))):
        pytest.skip("no nbclient, ipykernel or timm (bash setup-utils/install-torch.sh --dev)")
    execute(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs(name):
    path = FOLDER / f"{name}.ipynb"
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    installation, *others = cells
    assert installation["metadata"]["tags"] == ["install"] and not installation["outputs"]
    assert [cell["execution_count"] for cell in others] == [*range(1, len(cells))]
    outputs = [output for cell in others for output in cell["outputs"]]
    texts = ["".join(output.get("text", "")) for output in outputs]
    assert any(texts) and not FOLDERS.findall("".join(texts))
    assert "error" not in {output["output_type"] for output in outputs}
    assert path.stat().st_size < 60_000
