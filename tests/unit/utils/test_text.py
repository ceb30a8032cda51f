from partial_fc.utils.text import amount


def test_amounts():
    sizes = (5, 1500, 2_000_000, 128e9, 3e15)
    assert [amount(size) for size in sizes] == ["5 bytes", "1.5 KB", "2.0 MB", "128.0 GB", "3000.0 TB"]
