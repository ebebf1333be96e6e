"""Sound for speech models: files are decoded, resampled and turned into spectra."""
