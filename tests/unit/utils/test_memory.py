import os

import pytest

from partial_fc.utils.memory import free_memory, require_memory


def host(root, available_kb, **files):
    """A root with /proc/meminfo and the given files of the control group: "memory__max" is memory/max."""
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal:  99 kB\nMemAvailable:  {available_kb} kB\nHugePages_Total: 0\n")
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_free_memory_of_the_machine(tmp_path):
    assert free_memory(host(tmp_path, 1000)) == 1024000


@pytest.mark.parametrize(
    "version, limit, usage, statistics",
    [
        (2, "memory_DOT_max", "memory_DOT_current", "anon 1\nfile 9999\ninactive_file 20000\nactive_file 7000\n"),
        (
            1,
            "memory__memory_DOT_limit_in_bytes",
            "memory__memory_DOT_usage_in_bytes",
            "inactive_file 1\nactive_file 1\ntotal_inactive_file 20000\ntotal_active_file 7000\n",
        ),
    ],
)
def test_a_smaller_limit_of_the_container_counts_without_its_page_cache(tmp_path, version, limit, usage, statistics):
    stat = "memory_DOT_stat" if version == 2 else "memory__memory_DOT_stat"
    root = host(tmp_path, 1000, **{limit: "500000\n", usage: "400000\n", stat: statistics})
    assert free_memory(root) == 127000


def test_a_container_at_its_limit_has_nothing_left(tmp_path):
    files = {"memory_DOT_max": "500\n", "memory_DOT_current": "600\n", "memory_DOT_stat": "anon 600\n"}
    assert free_memory(host(tmp_path, 1000, **files)) == 0


def test_a_container_without_a_limit(tmp_path):
    root = host(tmp_path, 1000, memory_DOT_max="max\n", memory_DOT_current="400000\n")
    assert free_memory(root) == 1024000


def test_this_host():
    assert 0 < free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_centers_that_do_not_fit_are_refused():
    require_memory(5, 5, "on this host", "start fewer ranks")
    with pytest.raises(ValueError, match="need 2.0 GiB on this host, 1.0 GiB are free: start fewer ranks"):
        require_memory(2 << 30, 1 << 30, "on this host", "start fewer ranks")
