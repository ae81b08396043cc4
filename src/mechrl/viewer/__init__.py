"""The circuit in a browser: one self-contained page, on disk or from a server that only this machine can reach."""

from mechrl.viewer.page import circuit_html, page

__all__ = ["circuit_html", "page"]
