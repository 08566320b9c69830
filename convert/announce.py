"""What takes long is told as it begins: a log line where a process has set up logs, else a line on stderr."""

import logging
import sys

logger = logging.getLogger("convert")


def announce(message: str) -> None:
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info(message)
    else:
        print(message, file=sys.stderr, flush=True)
