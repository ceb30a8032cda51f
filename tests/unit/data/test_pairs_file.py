"""Validation pairs pickled by several versions of Python and NumPy, and pickles that must be refused."""

import io
import os
import pickle
import random

import numpy as np
import pytest

from benchmarks.host import resident, start_peak
from damage import memory_below
from partial_fc.data.pairs_bin import read_pairs, write_pairs
from partial_fc.data.pickle_bounds import OF_LISTS, BoundedUnpickler

IMAGES = [b"\xff\xd8 first \x00\xd9", b"second", b"third\n'\"", b"\x80\x04 fourth"]
SAME = [True, False]

# What Python 2 wrote for ([str, str], [True]): str is bytes there. Protocol 2, then protocol 0.
PYTHON2 = b"\x80\x02](U\x03\xff\xd8aU\x01be]\x88a\x86."
PYTHON2_TEXT = b"((lp0\nS'\\xff\\xd8a'\np1\naS'b'\np2\na(lp3\nI01\natp4\n."
# numpy.frombuffer(b"\xff\xd8a", uint8) in Python 2, protocol 2.
PYTHON2_ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x03\x85"
    b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03\xff\xd8atb"
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lfw.bin")


def read_bytes(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return read_pairs(path)


@pytest.mark.parametrize("convert", [bytes, bytearray])
def test_pairs_are_read_as_written_also_by_the_original(path, convert):
    write_pairs(path, [convert(image) for image in IMAGES], np.array(SAME))
    images, issame = read_pairs(path)
    assert images == IMAGES and issame.dtype == bool and issame.tolist() == SAME
    with open(path, "rb") as file:
        content = file.read()
    assert content == pickle.dumps((IMAGES, SAME), protocol=4)  # reproducible
    assert pickle.loads(content, encoding="bytes") == (IMAGES, SAME)
    assert os.listdir(os.path.dirname(path)) == ["lfw.bin"]


@pytest.mark.parametrize("content", [PYTHON2, PYTHON2_TEXT, b"\x80\x02](" + PYTHON2_ARRAY + b"U\x01be]\x88a\x86."])
def test_files_of_python_2(path, content):
    images, issame = read_bytes(path, content)
    assert images == [b"\xff\xd8a", b"b"] and issame.tolist() == [True]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("flags", [SAME, [1, 0], np.array(SAME), list(np.array(SAME))], ids=str)
def test_every_protocol_and_numpy_content(path, protocol, flags):
    arrays = [np.frombuffer(IMAGES[0], np.uint8), np.frombuffer(IMAGES[1], np.uint8).reshape(-1, 1)]
    images, issame = read_bytes(path, pickle.dumps((arrays + IMAGES[2:], flags), protocol=protocol))
    assert images == IMAGES and issame.tolist() == SAME


class Harm:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "harm",
    [
        Harm(os.mkdir, "harm"),
        Harm(eval, "__import__('os').mkdir('harm')"),
        Harm(exec, "import os; os.mkdir('harm')"),
        Harm(getattr, "text", "upper"),
    ],
    ids=lambda harm: harm.call[0].__name__,
)
def test_code_in_a_file_does_not_run(path, tmp_path, monkeypatch, protocol, harm):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="lfw.bin is not a file of validation pairs .*is not allowed"):
        read_bytes(path, pickle.dumps(([harm, b"b"], [True]), protocol=protocol))
    assert not os.path.exists("harm")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps((IMAGES, SAME))[:40],
        pickle.dumps(IMAGES),
        pickle.dumps((IMAGES, [2, 0])),
        pickle.dumps((IMAGES[:3] + [b""], SAME)),
        pickle.dumps((IMAGES[:3] + [np.arange(3)], SAME)),
        *(pickle.dumps(counts) for counts in ((IMAGES[:3], SAME), (IMAGES, SAME[:1]), ([], []))),
    ],
)
def test_other_content_is_refused(path, content):
    with pytest.raises(ValueError, match="lfw.bin (is not a file of validation pairs|contains . images for)"):
        read_bytes(path, content)


def test_pairs_without_two_images_each_are_not_written(path):
    with pytest.raises(ValueError, match="2 pairs need 4 images, got 3"):
        write_pairs(path, IMAGES[:3], SAME)


TEXT = "x" * 1_000_000
DOUBLED = b")" + b"q\x00h\x00\x86" * 60  # a tuple that contains the same tuple twice, 60 levels deep


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # memo index 2^31 - 1
        b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b".",  # a string of 1 TB
        b"\x80\x04\x96" + (2**62).to_bytes(8, "little") + b".",
        b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N.",  # a frame
        b"Np" + b"9" * 5000 + b"\n.",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(U\x02u1tRJ\x00\x00\x00\x7ftR.",  # bytes(2^31)
        b"\x80\x02c_codecs\nencode\nq\x00X"
        + len(TEXT).to_bytes(4, "little")
        + TEXT.encode()
        + b"q\x01X\x06\x00\x00\x00latin1q"
        b"\x02](" + b"h\x00h\x01h\x02\x86R" * 6000 + b"e.",  # 6 GB of copies
        b"\x80\x02}(U\x01aK\x01u.",
        b"\x80\x04}" + DOUBLED + b"K\x00s.",  # a key whose hash takes 2^60 steps
        b"\x80\x04cnumpy\ndtype\n" + DOUBLED + b"\x85R.",  # an error message would print 2^60 names
        b"\x80\x04c_codecs\nencode\n(U\x01a" + DOUBLED + b"tR.",
        b"\x80\x05](cnumpy.core.numeric\n_frombuffer\nq\x00(\x96"
        + len(TEXT).to_bytes(8, "little")
        + TEXT.encode()
        + b"cnumpy\ndtype\n(U\x02u1tRNNtq\x01Rh\x00h\x01R"
        + b"h\x00h\x01R" * 6000
        + b"e]("
        + b"\x88" * 3001
        + b"e\x86.",
    ],
    ids=range(12),
)
@pytest.mark.timeout(60)
def test_sizes_are_bounded_before_anything_is_allocated(path, content):
    start_peak()  # of this test alone
    with pytest.raises(ValueError, match="lfw.bin is not a file of validation pairs"):
        read_bytes(path, content)
    assert resident("VmHWM") < 2 << 30


@pytest.mark.timeout(60)
@pytest.mark.parametrize("opcodes", [b"(", b"]", b"]\x85", b"N\x94", b"Nq\x01", b"(" * 150 + b"t" * 150], ids=range(6))
def test_objects_that_take_a_byte_or_two_are_bounded_by_the_length(path, opcodes):
    with memory_below(64), pytest.raises(ValueError, match="lfw.bin is not a file of validation pairs"):
        read_bytes(path, opcodes * (9_000_000 // len(opcodes)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("objects", [[[n, n + 1] for n in range(120_000)], [(n, True) for n in range(120_000)]])
def test_many_small_objects_are_read(protocol, objects):
    content = pickle.dumps(objects, protocol)
    assert BoundedUnpickler(io.BytesIO(content), OF_LISTS).load() == objects


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_damaged_bytes_are_refused_or_read(path):
    chance = random.Random(1)
    files = [pickle.dumps(([np.frombuffer(IMAGES[0], np.uint8), *IMAGES[1:]], SAME), number) for number in range(6)]
    for _ in range(3000):
        content = bytearray(chance.choice([*files, PYTHON2, PYTHON2_TEXT]))
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.choice(
                [0, 127, 255, *b".()]}NRbcpqrhjeautt", chance.randrange(256)]
            )
        try:
            read_bytes(path, bytes(content))
        except ValueError as error:
            assert "lfw.bin" in str(error)
