"""Bounds what a pickle can allocate, before it is read.

pickle allocates what an opcode names: a length, or an index of its memo, may ask for 100 GB in a file of 20 bytes. Here
the opcodes are read without being executed.
"""

import pickletools
from typing import Any

# What a list of byte strings, flags or NumPy arrays is written with, in protocols 0 to 5, and by torch.save.
NAMES = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT LONG BININT BININT1 BININT2 LONG1 "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "EMPTY_DICT SETITEM SETITEMS BINFLOAT BINPERSID "
    "PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD"
).split()
OPCODES = {opcode.code.encode("latin1"): opcode for opcode in pickletools.opcodes if opcode.name in NAMES}


def check_opcodes(stream: Any) -> None:
    """Raises ValueError unless reading the pickle in a binary stream takes memory in proportion to its length.

    The lengths of all strings are those of bytes that are there, memo indices are consecutive as picklers write them,
    and there are no other opcodes than those of NAMES.
    """
    stored, name = 0, ""
    while name != "STOP":
        position, code = stream.tell(), stream.read(1)
        if code not in OPCODES:
            raise ValueError(f"opcode {code!r} at byte {position} is not allowed")
        opcode = OPCODES[code]
        name = opcode.name
        if name == "STRING":  # its reader decodes ASCII, while Python 2 wrote bytes
            stream.readline()
        elif opcode.arg:
            argument = opcode.arg.reader(stream)
            if name.endswith("PUT") and argument > stored + 1:  # Python 2 counts from 1
                raise ValueError(f"memo index {argument} at byte {position} follows {stored} objects")
        if name.endswith("PUT") or name == "MEMOIZE":
            stored += 1
