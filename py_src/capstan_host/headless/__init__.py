"""Capstan's page in a headless browser, driven from CPython: a browser, a server of files, and the page itself."""
