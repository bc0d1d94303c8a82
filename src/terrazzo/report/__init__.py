"""The page of a run: one self-contained HTML file, with charts and pictures written here; and the look of all figures.

`theme` holds fonts and colours, for these pages and for matplotlib; `markup` what pages share; every other module is
a section of the page or something it draws with.
"""

from terrazzo.report.page import render_page, write_page

__all__ = ["render_page", "write_page"]
