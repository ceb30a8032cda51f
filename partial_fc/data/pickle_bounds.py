"""Reads pickles of strangers in time and memory that grow with their length alone, and stops at Ctrl-C."""

import pickle
import pickletools
import struct
from collections.abc import Callable, Collection, Mapping, Sized
from typing import Any

# A damaged pickle can raise nearly any exception.
DAMAGE = (
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    AttributeError,
    OverflowError,
    AssertionError,
    RecursionError,
    struct.error,
)
# What lists of byte strings, flags or NumPy arrays are written with, in protocols 0 to 5.
OF_LISTS = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT LONG BININT BININT1 BININT2 LONG1 "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD".split()
)
# What torch.save writes beside.
OF_TENSORS = OF_LISTS | {"EMPTY_DICT", "SETITEM", "SETITEMS", "BINFLOAT", "BINPERSID", "NEWOBJ"}
# Which leave some 100 bytes in memory for the one or two that they take.
GROWING = frozenset(
    "EMPTY_LIST LIST EMPTY_DICT TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE REDUCE NEWOBJ".split()
)
GROWN = 100_000  # of them, and one for each further BYTES of the pickle
BYTES = 4
NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
SHORT = 32  # items of an argument that may be passed again and again
DEPTH = 100  # of containers in each other
UNFOLDED = 10  # items in containers per byte, if a container that is in several others counts in each
BIG_KEYS = 1000  # of dicts: integers that can be chosen so that all have one hash


# Python's, not C's, in which no signal is seen before the whole pickle is read.
class BoundedUnpickler(pickle._Unpickler):
    """An unpickler of some opcodes, and of the names that its subclass returns in find_class.

    Args:
        file: at the start of the pickle; its ``read`` allocates no more than there is.
        opcodes: OF_LISTS or OF_TENSORS.
        encoding: see pickle.Unpickler.
    """

    stack: list[Any]
    metastack: list[list[Any]]
    append: Callable[[Any], None]
    load_mark: Callable[[], None]
    load_binbytes8: Callable[[], None]
    load_build: Callable[[], None]
    load_setitem: Callable[[], None]
    load_setitems: Callable[[], None]

    def __init__(self, file: Any, opcodes: Collection[str], encoding: str = "ASCII"):
        super().__init__(file, encoding=encoding)
        self._file, self._copied, self._big_keys, self._grown = file, 0, 0, 0
        own: dict[int, Any] = dict.fromkeys(range(256), _refuse)
        for code, name in NAMES.items():
            if name in opcodes:
                load = getattr(type(self), f"checked_{name.lower()}", pickle._Unpickler.dispatch[code])
                own[code] = _counted_load(load) if name in GROWING else load
        vars(self)["dispatch"] = own  # instead of the class's

    def load(self) -> Any:
        """Returns the object. Raises one of DAMAGE."""
        content = super().load()
        _check_unfolded(content, UNFOLDED * self._file.tell())
        return content

    def checked_mark(self) -> None:
        """Begins the items of a container."""
        if len(self.metastack) >= 2 * DEPTH:
            raise pickle.UnpicklingError("too many containers are in each other")
        self.load_mark()

    def checked_bytearray8(self) -> None:
        """Allocates what is there, instead of what the length says."""
        self.load_binbytes8()
        self.stack[-1] = bytearray(self.stack[-1])

    def checked_reduce(self) -> None:
        """Calls what find_class has returned."""
        arguments = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], arguments)

    def checked_newobj(self) -> None:
        """Creates an object of a class that find_class has returned."""
        arguments = self.stack.pop()
        kind = self.stack.pop()
        self.append(kind.__new__(kind, *self._counted(arguments)))

    def checked_build(self) -> None:
        """Sets the state of an object."""
        self._counted((self.stack[-1],))
        self.load_build()

    def checked_setitem(self) -> None:
        """Sets an item of a dict."""
        self.key(self.stack[-2])
        self.load_setitem()

    def checked_setitems(self) -> None:
        """Sets items of a dict."""
        for key in self.stack[::2]:
            self.key(key)
        self.load_setitems()

    def call(self, function: Callable[..., Any], arguments: Any) -> Any:
        """Returns ``function(*arguments)``, unless all calls together take more than the bytes that were read."""
        return function(*self._counted(arguments))

    def key(self, key: Any) -> Any:
        """Returns the key of a dict, or an item of a set. Raises UnpicklingError if its hash may take long."""
        own_hash = type(key).__hash__ is not object.__hash__  # not that of its identity
        if own_hash and not isinstance(key, (str, bytes, int, float, type(None), type)):
            raise pickle.UnpicklingError(f"a key is a {type(key).__name__}, expected text or a number")
        self._big_keys += isinstance(key, int) and abs(key) >= 1 << 60
        if self._big_keys > BIG_KEYS:
            raise pickle.UnpicklingError("too many keys are numbers of more than 60 bits")
        return key

    def count_grown(self) -> None:
        """Counts one of GROWING. Raises UnpicklingError if they are many for the bytes that were read."""
        self._grown += 1
        if self._grown > GROWN and self._grown - GROWN > self._file.tell() // BYTES:
            raise pickle.UnpicklingError("it has more objects than its length allows")

    def _counted(self, arguments: Any) -> tuple:
        """Returns the arguments, of which what is called may copy each."""
        if not isinstance(arguments, tuple) or len(arguments) > SHORT:
            raise pickle.UnpicklingError("no tuple of few arguments")
        lengths = [len(item) for item in arguments if isinstance(item, Sized)]
        self._copied += sum(length for length in lengths if length > SHORT)
        if self._copied and self._copied > self._file.tell():
            raise pickle.UnpicklingError("its objects are copied again and again, to more bytes than the file has")
        return arguments


def _check_unfolded(content: Any, largest: int) -> None:
    """Raises ValueError if what walks through the content, or prints it, meets more than `largest` items."""
    sizes: dict[int, int] = {}

    def size(item: Any, depth: int) -> int:
        if not isinstance(item, (list, tuple, Mapping, set)):
            return 1
        if depth > DEPTH:
            raise ValueError(f"more than {DEPTH} containers are in each other")
        if id(item) not in sizes:
            inner = item.values() if isinstance(item, Mapping) else item
            sizes[id(item)] = 1 + sum(size(each, depth + 1) for each in inner)
        return sizes[id(item)]

    if size(content, 0) > largest:
        raise ValueError("it refers to its objects again and again")


def _counted_load(load: Callable[[Any], None]) -> Callable[[BoundedUnpickler], None]:
    def counted(unpickler: BoundedUnpickler) -> None:
        unpickler.count_grown()
        load(unpickler)

    return counted


def _refuse(unpickler: BoundedUnpickler) -> None:
    raise pickle.UnpicklingError("an opcode is not allowed")
