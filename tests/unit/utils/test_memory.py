import os

import pytest

from partial_fc.utils.memory import free_memory, require_memory


def host(root, available_kb, **files):
    """A root with /proc/meminfo and the given files of cgroups."""
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal:  99 kB\nMemAvailable:  {available_kb} kB\nHugePages_Total: 0\n")
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_the_machines_free_memory(tmp_path):
    assert free_memory(host(tmp_path, 1000)) == 1024000


def test_a_containers_share_counts_where_it_is_less(tmp_path):
    root = host(tmp_path, 1000, memory_DOT_max="500000\n", memory_DOT_current="400000\n")
    assert free_memory(root) == 100000


def test_a_container_without_a_limit(tmp_path):
    root = host(tmp_path, 1000, memory_DOT_max="max\n", memory_DOT_current="400000\n")
    assert free_memory(root) == 1024000


def test_this_host():
    assert 0 < free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_does_not_fit_is_refused():
    require_memory(5, 5, "on this host", "start fewer ranks")
    with pytest.raises(ValueError, match="need 2.0 GiB on this host, 1.0 GiB are free: start fewer ranks"):
        require_memory(2 << 30, 1 << 30, "on this host", "start fewer ranks")
