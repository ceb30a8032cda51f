"""The Python example of docs/mxnet.md runs without changes."""

import re

import mxnet as mx
import numpy as np

from partial_fc_mxnet import DummyIter
from paths import ROOT

PAGE = ROOT / "docs" / "mxnet.md"


def test_the_example_trains_a_custom_symbol(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    small = mx.sym.Pooling(mx.sym.Variable("data"), kernel=(8, 8), stride=(8, 8), pool_type="avg")
    names = {
        "num_classes": 30,
        "batch_size": 4,
        "max_update": 3,
        "symbol": mx.sym.FullyConnected(small, num_hidden=512, flatten=True),
        "train_data": DummyIter(4, (3, 32, 32), 2, 30),
    }
    exec(program, names)
    assert names["module"].num_update == 3
    assert np.isfinite(names["module"].loss_cache.asscalar())
    assert "num_update=3" in capsys.readouterr().out
