"""Sound as speech models take it: files are decoded, resampled and turned into spectra."""
