"""Procedurally drawn, synthetic faces: the embedded data set `demo`."""

from .dataset import VALIDATION, DemoSize, demo_set, plan_pairs, write_demo
from .draw import draw_face, encode_face

__all__ = ["VALIDATION", "DemoSize", "demo_set", "draw_face", "encode_face", "plan_pairs", "write_demo"]
