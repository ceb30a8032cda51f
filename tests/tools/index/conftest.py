"""The folder in which the tests of indexes run."""

import pytest

from index_files import embeddings, write


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Makes a folder with the embeddings ``a`` and ``b`` the current one."""
    monkeypatch.chdir(tmp_path)
    write("a", embeddings())
    write("b", embeddings(seed=1))
