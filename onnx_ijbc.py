"""Evaluates an ONNX model on IJB-B or IJB-C, see --help. The implementation is in partial_fc/evaluation/ijb/.

python onnx_ijbc.py --model-root DIR --image-path IJBC --result-dir OUT
"""

from partial_fc.utils.cli import start


def main() -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.evaluation.ijb.command import main as command

    return command()


if __name__ == "__main__":
    start(main)
