"""An image whose header names more pixels than a photo has is refused before they are allocated."""

import struct
import subprocess
import sys
import zlib

from paths import with_root

# In a process of its own, as the command: others here may have imported OpenCV first.
DECODE = """
import sys
from partial_fc.data.transforms import decode_any_size
try:
    decode_any_size(sys.stdin.buffer.read())
except ValueError as error:
    print(error)
# Not ru_maxrss, which begins with the peak of the process that has started this one.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_an_image_of_a_gigapixel_is_refused():
    side = 32_000
    rows = zlib.compress(bytes(1 + 3 * side) * 20)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    image = b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)
    command = [sys.executable, "-c", DECODE]
    done = subprocess.run(command, input=image, env=with_root(), capture_output=True, check=True, timeout=60)
    message, kibibytes = done.stdout.decode().splitlines()
    assert "is larger than OPENCV_IO_MAX_IMAGE_PIXELS allows" in message
    assert int(kibibytes) < 500 << 10
