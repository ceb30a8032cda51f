"""Runs notebooks of docs/notebooks: `.venv-torch/bin/python tests/notebooks.py demo` also stores the new outputs."""

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path

from paths import ROOT

FOLDER = ROOT / "docs" / "notebooks"


def execute(name, folder):
    """Runs a notebook's cells in a folder, without the installation, and returns it; raises the error of a cell."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    programs = Path(sys.executable).parent
    own = {key: str(folder) for key in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    env = {**os.environ, **own, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    client = NotebookClient(
        notebook,
        timeout=600,
        startup_timeout=300,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        skip_cells_with_tag="install",
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute(env=env)


def store(name, folder):
    """Runs a notebook and stores it with small outputs that name no folder of this machine."""
    import nbformat
    from PIL import Image

    notebook = execute(name, folder)
    for cell in notebook.cells:
        if cell.cell_type == "code":  # warnings of libraries name their files
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            if "text" in output:
                text = re.sub(r"[^\n]*\r(?!\n)", "", output["text"].replace("\r\n", "\n"))
                output["text"] = text.replace(f"{folder}/", "").replace(f"{Path(sys.executable).parent}/", "")
            if "image/png" in output.get("data", {}):
                output["data"].pop("text/plain", None)
                picture = io.BytesIO()
                pixels = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"]))).convert("RGB")
                pixels.quantize(48, dither=Image.Dither.NONE).save(picture, "png", optimize=True)
                output["data"]["image/png"] = base64.b64encode(picture.getvalue()).decode()
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as temporary:
            store(each, temporary)
