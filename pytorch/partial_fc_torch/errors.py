"""The messages of PyTorch's errors. This file does not need PyTorch."""

INSTALL = (
    "run `pip install -r requirement.txt` in a clone, or install the wheel with its extra torch, in an environment "
    "without MXNet (Python 3.10 or newer)"
)
NOT_INSTALLED = f"PyTorch is not installed: {INSTALL}"

LESS_MEMORY = (
    "To need less memory, reduce batch_size, or tile_classes or logits_cache_mb of layer_options, or keep the centers "
    "in host memory by bank_on_gpu=False"
)

# What C++ adds to a message, and the stack trace that follows it.
_CPP_TRACE = "\nException raised from "


def error_message(error: BaseException) -> str:
    """Returns the message of an error, without the C++ stack trace that PyTorch puts behind it."""
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return error.strerror  # raised with a message beside its number
    message = str(error).split(_CPP_TRACE, 1)[0].strip() or repr(error)
    # PyTorch says which GPU, how much was asked for and how much was free.
    return f"{message} {LESS_MEMORY}" if type(error).__name__ == "OutOfMemoryError" else message
