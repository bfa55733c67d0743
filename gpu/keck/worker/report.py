"""How a worker tells the judge that code written by a model raised."""

import os
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
TAIL_LINES = 12
TAIL_CHARS = 4000


def failure(step, error):
    """A message about an exception: where, its type's name, what it says, and where it was raised.
    Lines of the worker itself say nothing to whoever wrote the code."""
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if os.path.dirname(frame.filename) != HERE]
    trace = "".join(traceback.format_list(frames)).rstrip().splitlines()
    text = said[-TAIL_LINES // 2:] + trace[-TAIL_LINES // 2:]
    names = []
    seen = error
    while seen is not None and len(names) < 8:
        names += [c.__name__ for c in type(seen).__mro__[:3]]
        seen = seen.__cause__ or seen.__context__
    return {"failed": step, "types": names, "message": str(error)[:2000],
            "detail": "\n".join(text)[-TAIL_CHARS:]}
