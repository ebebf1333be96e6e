"""Answers a page's requests, with the host in `_js`."""
