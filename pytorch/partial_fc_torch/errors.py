"""Messages of PyTorch's errors. This file does not import PyTorch."""

INSTALL = (
    "run `pip install -r requirement.txt` in a clone, or install the wheel with its extra torch, in an environment "
    "without MXNet (Python 3.10 or newer)"
)
NOT_INSTALLED = f"PyTorch is not installed: {INSTALL}"

LESS_MEMORY = (
    "To use less memory, reduce batch_size, or tile_classes or logits_cache_mb of layer_options, or keep the centers "
    "in host memory with bank_on_gpu=False"
)

_CPP_TRACE = "\nException raised from "  # begins the C++ stack trace


def error_message(error: BaseException) -> str:
    """Returns the message of an error, without the C++ stack trace that PyTorch appends."""
    if isinstance(error, OSError) and error.strerror and not error.filename:
        return error.strerror  # without the error number
    message = str(error).split(_CPP_TRACE, 1)[0].strip() or repr(error)
    # PyTorch's message has the GPU, the requested and the free memory, but not what to change in this trainer.
    return f"{message} {LESS_MEMORY}" if type(error).__name__ == "OutOfMemoryError" else message
