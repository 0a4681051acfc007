"""Panels in a real JupyterLab with a real kernel and the real embedded server, in a headless Chromium."""
