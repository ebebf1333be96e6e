"""The documentation as a site: the pages that are generated, and MkDocs' hook."""
