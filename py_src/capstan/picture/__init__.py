"""Pictures as vision models take them: decoded, resized and normalized. Needs numpy and Pillow."""
