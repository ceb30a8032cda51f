"""The Python examples of docs/pytorch.md run without changes, on two processes."""

import os
import re

import pytest

from paths import ROOT

VENV = ROOT / ".venv-torch"

pytestmark = pytest.mark.skipif(not VENV.exists(), reason="no .venv-torch (install-torch.sh makes it)")


@pytest.fixture
def run_example(run, tmp_path):
    """Runs the example of this place in the document, with these arguments, and returns what it printed."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), re.DOTALL)
    torchrun = (VENV / "bin" / "python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    search = os.pathsep.join([str(ROOT), str(ROOT / "pytorch")])

    def run_program(place, *arguments):
        program = tmp_path / "example.py"
        program.write_text(programs[place].replace('prefix="centers"', f"prefix={str(tmp_path)!r}"))
        done = run(*torchrun, program, *arguments, PYTHONPATH=search, CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_program


def test_the_layer_in_a_program_of_a_user(run_example, tmp_path):
    losses = re.findall(r"loss ([\d.]+)", run_example(0))
    assert len(losses) == 2 and losses[0] == losses[1]
    assert len(list(tmp_path.glob("rank_?_softmax_weight.pt"))) == 2


def test_a_backbone_of_a_user_is_trained_verified_and_saved(run_example, settings, tmp_path):
    output = tmp_path / "own"
    assert "[demo_val] final accuracy" in run_example(1, *settings, f"output={output}")
    assert all((output / name).stat().st_size for name in ("backbone.pth", "backbone.onnx", "report.html"))
