"""Every exception that Capstan raises on purpose.

    CapstanError                  (also a RuntimeError, like the errors of onnxruntime-genai)
    ├── ConfigError               genai_config.json or tokenizer files: the message carries the JSON path
    ├── ModelFileError a model file is missing, truncated or of the wrong size
    │   └── WeightsChangedError       a weight file is not what it was when its other parts were read
    ├── StorageError              the browser's storage cannot keep or give what was asked of it
    ├── UnsupportedModelError     a model type, graph node or dtype that Capstan cannot run
    │   └── UncomputedError           a graph node that onnxruntime-web does not compute on this device
    ├── OptionError               an unknown option or a value out of range       (also a ValueError)
    │   ├── ArgumentTypeError         an argument of a public function is of a wrong type   (also a TypeError)
    │   └── GuidanceError             a grammar for constrained decoding that cannot be used; the message has the place
    ├── PromptError               an empty prompt, or one longer than max_length  (also a ValueError)
    ├── PictureError              a file that is no picture, truncated, animated or too large   (also a ValueError)
    ├── SoundError                a recording that cannot be heard: no sound, truncated, too long (also a ValueError)
    ├── LogitsError               no token can be picked: every logit is NaN or minus infinity
    ├── BindingError              a name, dtype or shape that a session does not have   (also a ValueError)
    │   └── BufferMismatchError       a buffer of the wrong size, alignment, usage or device
    │       └── MemoryTypeError           memory of a type that an operation cannot use, or that is being read
    ├── AsyncRequiredError        a synchronous call that would have to wait, where it cannot wait
    ├── VersionError              a version of Pyodide or onnxruntime-web that does not fit   (also an ImportError)
    ├── ClosedError               a model, generator or session was used after it was closed
    ├── DeviceError
    │   ├── DeviceUnavailableError    the requested device does not exist here
    │   ├── DeviceLostError           the GPU device was lost or destroyed
    │   ├── OutOfMemoryError          the device could not allocate what was requested
    │   └── ValidationError           the device rejected a command (a WebGPU uncaptured error)
    └── TapeError
        ├── TapeKeyError              a tape was used with another model, length, adapter or options
        └── TapeCheckError            a recorded tape and the eager step give different results

A message says three things: the value that was found, the limit it broke, and the remedy.
"""

from __future__ import annotations

__all__ = [
    "ArgumentTypeError",
    "AsyncRequiredError",
    "BindingError",
    "BufferMismatchError",
    "CapstanError",
    "ClosedError",
    "ConfigError",
    "DeviceError",
    "DeviceLostError",
    "DeviceUnavailableError",
    "GuidanceError",
    "LogitsError",
    "MemoryTypeError",
    "ModelFileError",
    "OptionError",
    "OutOfMemoryError",
    "PictureError",
    "PromptError",
    "SoundError",
    "StorageError",
    "TapeCheckError",
    "TapeError",
    "TapeKeyError",
    "UncomputedError",
    "UnsupportedModelError",
    "ValidationError",
    "VersionError",
    "WeightsChangedError",
]


MOST_CHARACTERS = 1500
"""The longest message; a longer one loses its middle, since a value in it may be as long as a file."""


class CapstanError(RuntimeError):
    """Base of every error raised on purpose; `str(error)` is one line for a person to read."""

    def __init__(self, message: str = "", *rest: object) -> None:
        # A library's message, or a value in it, may have several lines.
        message = " ".join(message.splitlines())
        if len(message) > MOST_CHARACTERS:
            half = MOST_CHARACTERS // 2
            left_out = len(message) - 2 * half
            message = f"{message[:half]} ... ({left_out} characters) ... {message[-half:]}"
        super().__init__(message, *rest)


class ConfigError(CapstanError):
    """A configuration file is not valid; the message names the file and the JSON path of the field."""


class ModelFileError(CapstanError):
    """A model file is missing, truncated or of the wrong size; the message names it and the sizes."""


class WeightsChangedError(ModelFileError):
    """A weight file changed while it was read, or since it was stored; the message gives what was expected and what was
    found.
    """


class StorageError(CapstanError):
    """The browser's storage is full, locked or gone, or what was saved is damaged; the message has the bytes wanted and
    the bytes free, or the reason.
    """


class UnsupportedModelError(CapstanError):
    """The model's type, a node of its graph or a dtype cannot be run; the message names it."""


class UncomputedError(UnsupportedModelError):
    """onnxruntime-web does not compute a node of the graph on this device; the message names the node."""


class OptionError(CapstanError, ValueError):
    """An option is unknown or its value out of range; the message gives the value and the range."""


class ArgumentTypeError(OptionError, TypeError):
    """An argument is of a wrong type; the message gives its name, its value and type, and what to give instead."""


class GuidanceError(OptionError):
    """A schema, expression or grammar for constrained decoding cannot be used; the message gives the place in it."""


class PromptError(CapstanError, ValueError):
    """A prompt is empty or longer than `max_length`; lengths are in tokens."""


class PictureError(CapstanError, ValueError):
    """A picture cannot be used: it is not a picture, truncated, animated, too large, or does not fit its prompt; sizes
    are in pixels.
    """


class SoundError(CapstanError, ValueError):
    """A recording cannot be used: it is not a sound, truncated, or too long for the model; lengths are in seconds."""


class BindingError(CapstanError, ValueError):
    """A tensor does not fit a session's input or output; the message gives its name, what was expected and what was
    given.
    """


class BufferMismatchError(BindingError):
    """A buffer cannot be used because of its size, alignment, usage, device or lifetime; the message gives what was
    expected and what was given.
    """


class MemoryTypeError(BufferMismatchError):
    """An operation cannot use memory of that type, or mapped memory; the message names both memories and the remedy."""


class LogitsError(CapstanError):
    """No token can be picked: every logit is NaN or minus infinity, or search options exclude every token."""


class AsyncRequiredError(CapstanError):
    """A synchronous call would have to wait for JavaScript and cannot; the message names its async twin."""


class ClosedError(CapstanError):
    """An object was used after `close()`, or after the session below it was released."""


class VersionError(CapstanError, ImportError):
    """Pyodide or onnxruntime-web is of a version that Capstan does not work with; the message gives both versions."""


class DeviceError(CapstanError):
    """Base of a device's errors."""


class DeviceUnavailableError(DeviceError):
    """The device or a feature that was requested does not exist on this machine."""


class DeviceLostError(DeviceError):
    """The GPU device was lost or destroyed; load the model again."""


class OutOfMemoryError(DeviceError):
    """The device could not allocate what was requested; sizes are in bytes."""


class ValidationError(DeviceError):
    """The device rejected a command; results since the last burst cannot be trusted."""


class TapeError(CapstanError):
    """Base of errors of a recorded decode step."""


class TapeKeyError(TapeError):
    """A tape belongs to another model, length, GPU adapter or option set; the message has what was expected and what
    was given.
    """


class TapeCheckError(TapeError):
    """A recorded tape is not replayable, or its replay differs from the eager step."""
