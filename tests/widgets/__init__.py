"""Tests of the panels as plain objects; in a browser they are tried in ``tests/browser``."""
