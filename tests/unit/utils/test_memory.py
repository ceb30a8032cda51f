import os

import pytest

from partial_fc.utils.memory import free_memory, require_memory


def test_this_host():
    assert 0 < free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_centers_that_do_not_fit_are_refused():
    require_memory(5, 5, "on this host", "start fewer ranks")
    with pytest.raises(ValueError, match="need 2.0 GiB on this host, 1.0 GiB are free: start fewer ranks"):
        require_memory(2 << 30, 1 << 30, "on this host", "start fewer ranks")
