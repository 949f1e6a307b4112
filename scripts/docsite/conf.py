# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the pages that scripts/docs_site.py copies. Nothing on them is loaded from a network."""

project = "oktopk"
html_title = "oktopk"
extensions = ["myst_parser"]
root_doc = "index"
myst_heading_anchors = 4
myst_enable_extensions = []
suppress_warnings = [
    "myst.header",  # a page may begin with a heading of any level, as on a code host
    "misc.highlighting_failure",  # blocks of C++ with "..." in them
]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
templates_path = []
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
