"""Slow work is announced as it begins: by a log line in a process that has set up logging, else by a line on stderr."""

import logging
import sys

logger = logging.getLogger("convert")


def announce(message: str) -> None:
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info(message)
    else:
        print(message, file=sys.stderr, flush=True)
