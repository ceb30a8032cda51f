"""benchmarks/gpu.py runs, and needs nothing but PyTorch and NumPy for the layer and the backbones."""

import json
import subprocess
import sys
import time

from paths import ROOT

# What the environment of the trainer has besides them, and OpenCV, without which reading is left out.
WITHOUT = """
import importlib.util, runpy, sys
others = ("cv2", "easydict", "matplotlib", "onnx", "onnxruntime", "tensorboard", "tqdm")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in others:
            raise ModuleNotFoundError(name, name=name)
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in others else find_spec(name, *more)
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_pytorch_and_numpy_are_enough_for_all_but_reading(tmp_path):
    command = [sys.executable, "-c", WITHOUT, ROOT / "benchmarks" / "gpu.py", "--quick", "--json", tmp_path / "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks of the layer: none failed" in done.stdout
    assert "reading was not measured: OpenCV is not installed" in done.stdout
    results = json.loads((tmp_path / "gpu").read_text())
    assert results["failed"] == [] and "reading" not in results
    assert all(row["seconds"] > 0 and row["bytes"] >= 0 for row in results["layer"])
    assert len(results["kernels"]) == 10 and len(results["backbones"]) == 2


def test_waiting_for_the_reader_is_measured(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    import gpu

    def slow_reader():
        time.sleep(0.05)
        return None, None

    speed, waiting = gpu.speed(lambda images, labels: None, gpu.QUICK._replace(steps=4), "cpu", slow_reader)
    assert waiting > 0.9 and speed <= gpu.QUICK.batch / 0.05
    (row,) = gpu.reading(gpu.QUICK, "cpu")  # the real one
    assert row["speed"] > 0
