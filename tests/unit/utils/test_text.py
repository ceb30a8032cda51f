from partial_fc.utils.text import amount, plural, some


def test_plurals():
    assert [plural(count, "image") for count in (0, 1, 1_000_000)] == ["0 images", "1 image", "1,000,000 images"]
    assert plural(1, "identity", "identities") == "1 identity" and plural(2, "identity", "identities") == "2 identities"


def test_amounts():
    sizes = (5, 1500, 2_000_000, 128e9, 3e15)
    assert [amount(size) for size in sizes] == ["5 bytes", "1.5 KB", "2.0 MB", "128.0 GB", "3000.0 TB"]


def test_some_names():
    assert some(["b", "a"]) == "b, a"
    assert some("abcd") == "a, b, c and 1 other" and some("abcde") == "a, b, c and 2 others"
