"""What is read of a log a second time: messages, requests, causes, and traces without text."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
