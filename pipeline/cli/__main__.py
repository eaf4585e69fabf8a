"""Run ``dpstream`` as ``python -m dpstream.pipeline.cli``, exiting when its parent exits."""

import sys
import traceback

from dpstream.pipeline.cli import main
from dpstream.pipeline.parent_watch import follow, send_reason


def _run() -> int:
    follow()
    try:
        return main()
    except Exception as error:
        send_reason(traceback.format_exception_only(error)[-1].strip())
        raise


if __name__ == "__main__":
    sys.exit(_run())
