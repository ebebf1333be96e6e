"""Implements og.Config: a folder's genai_config.json, which the caller's script may change before it loads the
model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ModelFileError, OptionError, UnsupportedModelError
from ..fallback import fall_back
from ..loading.folder import laid_over
from ..model_files.bounded_json import NotJsonError, read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Config"]

PROVIDERS = {
    **dict.fromkeys(("webgpu", "webgpuexecutionprovider"), "webgpu"),
    **dict.fromkeys(("cpu", "cpuexecutionprovider"), "cpu"),
}


class Config:
    """The configuration of the model folder at `path`, for `Model(config)`.

    As in the native package, a model is loaded onto the device of the providers in the file, the CPU if there are none.
    If the file names WebGPU and the page has none, the CPU takes its place, with a FallbackWarning. After
    `clear_providers` the device is the CPU. After `append_provider('webgpu')` it is the GPU, or an error.
    """

    def __init__(self, path: str, /) -> None:
        self._path = path
        self._overlay: dict[str, Any] = {}
        self._providers: list[str] | None = None
        self._options: dict[str, dict[str, str]] = {}
        self._data: dict[str, bytes] = {}

    @staticmethod
    def from_package_ep(config_path: str, ep: str) -> Config:
        """Always raises UnsupportedModelError, because Capstan does not support model packages."""
        raise UnsupportedModelError(
            f"{config_path}: model packages (with {ep!r}) are not supported; give the folder of a variant"
        )

    def overlay(self, text: str, /) -> None:
        """Lay a JSON object over the file: its fields replace fields of the same name. Raises ConfigError for other
        JSON.
        """
        try:
            changes = read_json(text)
        except NotJsonError as error:
            raise ConfigError(f"overlay: {error}; give a JSON object") from error
        if changes is not None and not isinstance(changes, dict):
            raise ConfigError(f"overlay: expected a JSON object, got {text[:60]}")
        self._overlay = laid_over(self._overlay, changes or {})

    def clear_providers(self) -> None:
        """Remove all providers and the options that were set, so that the CPU computes. Options of the file stay."""
        self._providers = []
        self._options.clear()

    def append_provider(self, name: str, /) -> None:
        """Add an execution provider, 'webgpu' or 'cpu'. Any other provider raises an error when the model is loaded."""
        self._providers = [*(self._providers or []), name]

    def set_provider_option(self, provider: str, name: str, value: str, /) -> None:
        """Set an option of a provider, and add the provider if it is missing; options from the file stay. WebGPU has
        two: `enableGraphCapture`, "0" or "1" (loading the model with anything else raises ConfigError), and
        `disable_file_mapped_weights`, whose "1" keeps weights out of the browser's storage. Loading warns of unknown
        options, here and in the file.
        """
        if self._providers is None or provider not in self._providers:
            self.append_provider(provider)
        self._options.setdefault(provider, {})[name] = value

    def set_decoder_provider_options_hardware_device_type(self, provider: str, value: str, /) -> None:
        """Counts a fallback, with a warning, because a page cannot choose among devices."""
        _not_chosen(provider, "device type", value)

    def set_decoder_provider_options_hardware_device_id(self, provider: str, value: int, /) -> None:
        """See set_decoder_provider_options_hardware_device_type."""
        _not_chosen(provider, "device id", value)

    def set_decoder_provider_options_hardware_vendor_id(self, provider: str, value: int, /) -> None:
        """See set_decoder_provider_options_hardware_device_type."""
        _not_chosen(provider, "vendor id", value)

    def clear_decoder_provider_options_hardware_device_type(self, provider: str, /) -> None:
        """Does nothing; see set_decoder_provider_options_hardware_device_type."""

    def clear_decoder_provider_options_hardware_device_id(self, provider: str, /) -> None:
        """Does nothing; see set_decoder_provider_options_hardware_device_type."""

    def clear_decoder_provider_options_hardware_vendor_id(self, provider: str, /) -> None:
        """Does nothing; see set_decoder_provider_options_hardware_device_type."""

    def add_model_data(self, name: str, data: Buffer, /) -> None:
        """Take the graph's file from memory: `name` is the decoder's filename in the configuration."""
        self._data[name] = bytes(memoryview(data))

    def remove_model_data(self, name: str, /) -> None:
        """Remove the data that add_model_data added. Raises ModelFileError if there is none of that name."""
        if self._data.pop(name, None) is None:
            raise ModelFileError(f"model data {name!r} was not found; add it with add_model_data")

    def choice(self) -> dict[str, Any]:
        """Arguments for `capstan.Model` besides the path. Raises OptionError for a provider that pages lack."""
        chosen = "configured"
        if self._providers is not None:
            kinds = [PROVIDERS.get(name.lower()) for name in self._providers]
            for name, kind in zip(self._providers, kinds, strict=True):
                if kind is None:
                    raise OptionError(f"execution provider {name!r} is not in a page: append 'webgpu' or 'cpu'")
            chosen = "webgpu" if "webgpu" in kinds else "cpu"
        overlay = self._overlay
        if self._providers is not None:
            options = [{PROVIDERS[name.lower()]: self._options.get(name, {})} for name in self._providers]
            session = {"session_options": {"provider_options": options}}
            overlay = laid_over(overlay, {"model": {"decoder": session}})
        return {"device": chosen, "overlay": overlay or None, "graphs": self._data or None}


def _not_chosen(provider: str, what: str, value: object) -> None:
    fall_back(f"{what} {value!r} of provider {provider!r}", "a page cannot choose among devices", "the browser chooses")
