"""Answers a page's requests, over the host in `_js`."""
