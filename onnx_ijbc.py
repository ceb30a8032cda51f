"""IJB-B and IJB-C of an ONNX model; --help says more, and partial_fc/ijb/ does it.

python onnx_ijbc.py --model-root DIR --image-path IJBC --result-dir OUT
"""

from partial_fc.command_line import start


def main() -> int:
    from partial_fc.ijb.command import main as command  # here, so that Ctrl-C while it loads is no traceback

    return command()


if __name__ == "__main__":
    start(main)
