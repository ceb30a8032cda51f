"""Reads untrusted pickles in time and memory proportional to their length, and can be interrupted by Ctrl-C."""

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
# The opcodes of lists of byte strings, flags or NumPy arrays, in protocols 0 to 5.
OF_LISTS = frozenset(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT LONG BININT BININT1 BININT2 LONG1 "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD".split()
)
# torch.save also writes these.
OF_TENSORS = OF_LISTS | {"EMPTY_DICT", "SETITEM", "SETITEMS", "BINFLOAT", "BINPERSID", "NEWOBJ"}
# Opcodes of one or two bytes that allocate about 100 bytes.
GROWING = frozenset(
    "EMPTY_LIST LIST EMPTY_DICT TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE REDUCE NEWOBJ".split()
)
FREE_OBJECTS = 100_000  # opcodes in GROWING that any pickle may have; each further one needs BYTES_PER_OBJECT
BYTES_PER_OBJECT = 4
NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
SHORT = 32  # items; arguments up to this length may be passed any number of times
MAX_DEPTH = 100  # of nested containers
MAX_UNFOLDED = 10  # items per byte; a container inside several others counts in each of them
MAX_BIG_KEYS = 1000  # keys of dicts above 60 bits, which can be chosen so that all have the same hash


# The implementation in Python: the one in C handles no signal before it has read the whole pickle.
class BoundedUnpickler(pickle._Unpickler):
    """An unpickler restricted to some opcodes and to the names that a subclass's find_class allows.

    Args:
        file: at the start of the pickle; its ``read`` must not allocate more than the file contains.
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
        dispatch: dict[int, Any] = dict.fromkeys(range(256), _refuse)
        for code, name in NAMES.items():
            if name in opcodes:
                load = getattr(type(self), f"checked_{name.lower()}", pickle._Unpickler.dispatch[code])
                dispatch[code] = _counted_load(load) if name in GROWING else load
        vars(self)["dispatch"] = dispatch  # overrides the attribute of the class

    def load(self) -> Any:
        """Returns the object. Raises an exception in DAMAGE."""
        content = super().load()
        _check_unfolded(content, MAX_UNFOLDED * self._file.tell())
        return content

    def checked_mark(self) -> None:
        """Begins the items of a container."""
        if len(self.metastack) >= 2 * MAX_DEPTH:
            raise pickle.UnpicklingError("containers are nested too deeply")
        self.load_mark()

    def checked_bytearray8(self) -> None:
        """Reads a bytearray; the original method would allocate as much as the length says, before it reads."""
        self.load_binbytes8()
        self.stack[-1] = bytearray(self.stack[-1])

    def checked_reduce(self) -> None:
        """Calls a function that find_class has returned."""
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
        """Returns ``function(*arguments)``. Raises UnpicklingError if the arguments of all calls exceed the file."""
        return function(*self._counted(arguments))

    def key(self, key: Any) -> Any:
        """Returns a key of a dict or an item of a set. Raises UnpicklingError if hashing it may take long."""
        hashes_content = type(key).__hash__ is not object.__hash__
        if hashes_content and not isinstance(key, (str, bytes, int, float, type(None), type)):
            raise pickle.UnpicklingError(f"a key is a {type(key).__name__}, expected text or a number")
        self._big_keys += isinstance(key, int) and abs(key) >= 1 << 60
        if self._big_keys > MAX_BIG_KEYS:
            raise pickle.UnpicklingError("too many keys are numbers of more than 60 bits")
        return key

    def count_grown(self) -> None:
        """Counts an opcode in GROWING. Raises UnpicklingError if there are too many for the bytes read so far."""
        self._grown += 1
        if self._grown > FREE_OBJECTS and self._grown - FREE_OBJECTS > self._file.tell() // BYTES_PER_OBJECT:
            raise pickle.UnpicklingError("it has more objects than its length allows")

    def _counted(self, arguments: Any) -> tuple:
        """Returns the arguments of a call, after counting their lengths, because the call may copy them."""
        if not isinstance(arguments, tuple) or len(arguments) > SHORT:
            raise pickle.UnpicklingError("the arguments are not a short tuple")
        lengths = [len(item) for item in arguments if isinstance(item, Sized)]
        self._copied += sum(length for length in lengths if length > SHORT)
        if self._copied and self._copied > self._file.tell():
            raise pickle.UnpicklingError("its objects are copied repeatedly, to more bytes than the file has")
        return arguments


def _check_unfolded(content: Any, largest: int) -> None:
    """Raises ValueError if a walk through the content, as for printing it, would visit more than `largest` items."""
    sizes: dict[int, int] = {}

    def size(item: Any, depth: int) -> int:
        if not isinstance(item, (list, tuple, Mapping, set)):
            return 1
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} containers are nested")
        if id(item) not in sizes:
            inner = item.values() if isinstance(item, Mapping) else item
            sizes[id(item)] = 1 + sum(size(each, depth + 1) for each in inner)
        return sizes[id(item)]

    if size(content, 0) > largest:
        raise ValueError("it refers to its objects too often")


def _counted_load(load: Callable[[Any], None]) -> Callable[[BoundedUnpickler], None]:
    def counted(unpickler: BoundedUnpickler) -> None:
        unpickler.count_grown()
        load(unpickler)

    return counted


def _refuse(unpickler: BoundedUnpickler) -> None:
    raise pickle.UnpicklingError("an opcode is not allowed")
