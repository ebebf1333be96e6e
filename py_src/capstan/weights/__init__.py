"""Fetches weights in shards, verifies them, keeps them in the browser's storage, and shares them on the page."""
