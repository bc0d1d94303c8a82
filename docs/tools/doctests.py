"""Docstrings as they stand in the source, with their doctests set as code."""

import griffe


def fenced(text: str) -> str:
    """The docstring with every doctest in a fence.

    >>> print(fenced("A sum.\\n\\n>>> 1 + 1\\n2\\n\\nMore.").replace("`", "'"))
    A sum.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    '''
    <BLANKLINE>
    More.
    """
    lines, is_open = [], False
    for line in text.splitlines():
        if line.startswith(">>> ") and not is_open:
            lines.append("```pycon")
            is_open = True
        elif is_open and not line.strip():
            lines.append("```")
            is_open = False
        lines.append(line)
    return "\n".join([*lines, "```"] if is_open else lines)


class Doctests(griffe.Extension):
    """Sets the doctests of everything that is read as code."""

    def on_instance(self, *, obj, **_):
        """Called for each object, once its docstring is known."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
