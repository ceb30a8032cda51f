"""IJB-B and IJB-C of an ONNX model; --help says more, and partial_fc/evaluation/ijb/ does it.

python onnx_ijbc.py --model-root DIR --image-path IJBC --result-dir OUT
"""

from partial_fc.utils.cli import start


def main() -> int:
    from partial_fc.evaluation.ijb.command import main as command

    return command()


if __name__ == "__main__":
    start(main)
