import os

import pytest

from partial_fc.utils.memory import free_memory, require_memory


def test_this_host():
    assert 0 < free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


CACHE = "anon 1\n{0}inactive_file 20000\n{0}active_file 7000\n"


@pytest.mark.parametrize(
    "files, free",
    [
        ({}, 1_024_000),
        ({"memory.max": "max", "memory.current": "400000", "memory.stat": ""}, 1_024_000),
        ({"memory.max": "500000", "memory.current": "400000", "memory.stat": CACHE.format("")}, 127_000),
        (
            {
                "memory/memory.limit_in_bytes": "500000",
                "memory/memory.usage_in_bytes": "400000",
                "memory/memory.stat": CACHE.format("total_") + "inactive_file 1\nactive_file 1",
            },
            127_000,
        ),
        ({"memory.max": "500", "memory.current": "600", "memory.stat": "anon 600\n"}, 0),
    ],
)
def test_memory_of_a_machine_and_of_a_container(tmp_path, files, free):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nMemAvailable:  1000 kB\nHugePages_Total: 0\n")
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.rstrip() + "\n")
    assert free_memory(tmp_path) == free


def test_centers_that_do_not_fit_are_refused():
    require_memory(5, 5, "on this host", "start fewer ranks")
    with pytest.raises(ValueError, match="need 2.0 GiB on this host, 1.0 GiB are free: start fewer ranks"):
        require_memory(2 << 30, 1 << 30, "on this host", "start fewer ranks")
