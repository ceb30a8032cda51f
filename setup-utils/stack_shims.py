"""Restores names that MXNet 1.9.1 and mxboard use and that NumPy on Python 3.12 and 3.13 no longer has.

install.sh copies this file into the site-packages of `.venv`, and a `.pth` file there imports it, so that it also works
in other programs: Horovod's CMake, `horovodrun`, a user's script. At start-up it only adds a finder to `sys.meta_path`;
it changes numpy when MXNet or mxboard is first imported. Python 3.10 and 3.11 do not need it, and their `.pth` file
does not import it.

`distutils`, which Python 3.12 removed, comes from setuptools (see requirements/training.txt).
"""

import sys


def shim_numpy2(numpy) -> None:
    """Restores names of numpy 1 that mxnet/numpy/fallback.py and mxboard use (numpy 2, Python 3.13)."""
    renamed = {
        **{"PZERO": 0.0, "NZERO": -0.0, "PINF": numpy.inf, "NINF": -numpy.inf},
        **{"NAN": numpy.nan, "NaN": numpy.nan, "Inf": numpy.inf},
        **{"alltrue": numpy.all, "sometrue": numpy.any, "round_": numpy.round, "product": numpy.prod},
        **{"msort": lambda array: numpy.sort(array, axis=0), "in1d": numpy.isin},
        "trapz": getattr(numpy, "trapezoid", None),
    }
    # Financial functions, which numpy 1.20 removed: fallback.py refers to them, but nothing calls them.
    renamed.update((name, _removed(name)) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate"))
    for name, value in renamed.items():
        if name not in vars(numpy):
            setattr(numpy, name, value)
    # numpy 2 would print a shape as (np.int64(3),), and MXNet passes shapes to its C++ side as text.
    numpy.set_printoptions(legacy="1.25")


def _removed(name: str):
    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"numpy.{name} was removed in numpy 1.20; use the numpy-financial package")

    return missing


def shim_mxnet() -> None:
    """Applies the shims for the installed numpy."""
    import numpy

    if int(numpy.__version__.split(".")[0]) >= 2:
        shim_numpy2(numpy)
    elif "bool" not in vars(numpy):  # hasattr would make numpy print a warning
        numpy.bool = bool  # mxnet/numpy/utils.py uses it at import (numpy 1.26, Python 3.12)


class ShimFinder:
    """Finds no modules, but runs each shim once, just before the module that needs it is imported."""

    shims = {"mxnet": shim_mxnet, "mxboard": shim_mxnet}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        shim = cls.shims.pop(name, None)
        if shim is not None:
            shim()
        return None


if not any(getattr(finder, "__name__", "") == "ShimFinder" for finder in sys.meta_path):
    sys.meta_path.insert(0, ShimFinder)
